# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The coordinator's commit in every order that ranks' reports can come in, on a real storage."""

from __future__ import annotations

import itertools
import pathlib
import shutil
from collections.abc import Sequence

import pytest

from rover_kf import errors
from rover_kf.api.checkpoints import RankPersisted
from tests.support.pods.checkpoint_world import World, in_memory, running
from tests.support.states import identities
from tests.support.states.synthetic_states import Form

RANKS, STEPS = (0, 1), (1, 2, 3)
EVENTS = tuple(itertools.product(RANKS, STEPS))
FORM = Form("replicated", all_rows=2)

Event = tuple[int, int]
"""Rank, step: the rank has written its file and reports it."""


@pytest.fixture
def memory():
    """A folder in memory."""
    with in_memory() as folder:
        yield folder


@pytest.fixture
def runner():
    """Of coroutines."""
    with running() as started:
        yield started


class Job:
    """A world, and beside it what has to come of its reports."""

    def __init__(self, memory: pathlib.Path, runner) -> None:
        shutil.rmtree(memory / "pvc", ignore_errors=True)
        self.world = World(memory / "pods", memory / "pvc", FORM, runner)
        self.world.begin()
        self.round, self.durable = 2, 0
        self.world.commits._begin_round(identities.round_id(self.round))
        self._reported: dict[int, set[int]] = {}
        self._told: dict[Event, RankPersisted] = {}

    def take(self, event: Event) -> None:
        """A file and its report; late exactly if that step or a newer one is durable."""
        rank, step = event
        self._write(rank, step, self.round)
        try:
            self._told[event] = self.world.write(rank, step, self.round)
        except errors.CheckpointExists:
            assert step <= self.durable
        reply = self.world.report(self._told[event])
        assert reply.done == (step > self.durable), reply
        if reply.done:
            self._reported.setdefault(step, set()).add(rank)
            if self._reported[step] == set(RANKS):
                self.durable = step
        self._compare()

    def take_stale(self, event: Event) -> None:
        """A writer that was left behind in the round before changes nothing."""
        rank, step = event
        self._write(rank, step, self.round - 1)
        reply = self.world.report(self.world.write(rank, step, self.round - 1))
        assert "round 1 is over" in reply.reason
        self._compare()

    def _write(self, rank: int, step: int, round_: int) -> None:
        self.world.save_rank(rank, step, round_)

    def _compare(self) -> None:
        assert (self.world.commits.durable_step or 0) == self.durable
        whole = self.world.storage.complete_folders()
        newest = self.world.storage.verify(whole[-1]).state.step if whole else 0
        assert newest == self.durable

    def end(self) -> None:
        """The newest step is restored by pods with empty memory; the next retention tidies up."""
        self.world.forget()
        assert self.world.restore(self.round + 1) == (self.durable, self.round)
        self.world.persist(self.durable + 1, self.round + 1)
        assert self.world.is_tidy(self.durable + 1)
        assert not self.world.warnings()


def _begins_with_0(events: Sequence[Event]) -> bool:
    """The other half of all orders are these with the ranks exchanged."""
    return events[0][0] == 0


def _is_in_order(events: Sequence[Event]) -> bool:
    """Whether each rank goes on from step to step."""
    return all([step for rank, step in events if rank == one] == list(STEPS) for one in RANKS)


def test_reports_in_any_order_commit_what_is_whole(memory, runner):
    """Every permutation of all ranks' reports of three steps: late ones are refused."""
    orders = 0
    for events in filter(_begins_with_0, itertools.permutations(EVENTS)):
        job = Job(memory, runner)
        for event in events:
            job.take(event)
        assert job.durable == STEPS[-1]
        job.end()
        orders += 1
    print(f"{orders} orders")
    assert orders == 720 // 2


def test_duplicate_and_stale_reports_change_nothing(memory, runner):
    """Ranks that go on step by step, interleaved in every way; each report comes once more at every
    later place, or comes from a writer of the round before at any place."""
    orders = 0
    every = filter(_begins_with_0, itertools.permutations(EVENTS))
    for events in filter(_is_in_order, every):
        for first, place in itertools.combinations(range(len(events) + 1), 2):
            for stale in (False, True):
                job = Job(memory, runner)
                for index, event in enumerate(events):
                    if index == place:
                        (job.take_stale if stale else job.take)(events[first])
                    job.take(event)
                if place == len(events):
                    (job.take_stale if stale else job.take)(events[first])
                job.end()
                orders += 1
    print(f"{orders} orders")
    assert orders == 20 // 2 * 21 * 2
