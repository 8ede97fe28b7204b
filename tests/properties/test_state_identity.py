# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What ranks restore is one save of this job, and no older than promised, or an error is raised.

The arena, the folder on storage, the commits and the restores are the real ones. Ranks save steps
again, crash between two ranks' saves and lose their memory; coordinators are replaced while reports
to them are under way; another job has the same path; files are damaged; the clock jumps.
``ROVER_STATE_STEPS`` sets how many rules one example runs (50), ``ROVER_STATE_EXAMPLES`` how many
examples there are (12).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import pathlib
import time
from unittest import mock

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from rover_kf import errors
from rover_kf.api.checkpoints import ArenaRequest, RankPersisted, RestoreRequest
from rover_kf.api.states import RoundId, State
from rover_kf.checkpoint.storage.rate_limit import RateLimitedWriter, RateLimiter
from rover_kf.coordinator.commit.commit_service import CommitService
from rover_kf.sidecar.persist import rank_file
from rover_kf.sidecar.slots.rank_assignments import RankAssignment
from tests.support.pods.checkpoint_world import World, in_memory, running
from tests.support.states.synthetic_states import FORMS, Form

RANKS = (0, 1)
some_ranks = st.sets(st.sampled_from(RANKS))


@dataclasses.dataclass(frozen=True, slots=True)
class _Report:
    """Of one rank's file of a save, not yet delivered."""

    coordinator: CommitService
    save: int
    report: RankPersisted


class Job(RuleBasedStateMachine):
    """Two ranks, their coordinators, a rival job and the storage of both."""

    def __init__(self) -> None:
        super().__init__()
        self._stack = contextlib.ExitStack()
        self._home = self._stack.enter_context(in_memory())
        self._runner = self._stack.enter_context(running())
        self._offset, clock = 0.0, time.time
        patch = mock.patch("time.time", side_effect=lambda: clock() + self._offset)
        self._stack.enter_context(patch)
        self._round, self._newest = RoundId(1, 1), State(RoundId(1, 1), 0, 0)
        self._saves: dict[int, set[int]] = {}
        """By the number of a call of save() on all ranks: those that have sealed it."""
        self._promised = 0
        """The newest save that was said to be durable."""
        self._reports: list[_Report] = []
        self._crashed = self._harmed = self._failed = False

    @initialize(kind=st.sampled_from(FORMS))
    def start(self, kind: str) -> None:
        """The job claims its folder first."""
        form, pvc = Form(kind), self._home / "pvc"
        self._form = form
        self._world = World(self._home / "ours", pvc, form, self._runner, keep=2)
        self._rival = World(
            self._home / "theirs", pvc, form, self._runner, keep=2, namespace="other"
        )
        self._begin(self._world.commits, 1)

    def _begin(self, commits: CommitService, generation: int) -> None:
        self._runner.run(commits.scan_storage())
        commits.set_generation(generation)
        self._runner.run(commits.claim())

    @precondition(lambda self: not (self._crashed or self._failed))
    @rule(again=st.booleans(), killed=st.none() | st.sampled_from(RANKS))
    def save(self, again: bool, killed: int | None) -> None:  # noqa: FBT001 - drawn by hypothesis
        """All ranks save the next step, or the same once more; one may be killed before it does."""
        newest = self._newest
        again = again and newest.save > 0 and newest.round == self._round
        step, count = (newest.step, newest.save + 1) if again else (newest.step + 1, 1)
        self._newest = State(self._round, step, count)
        number = len(self._saves) + 1
        self._saves[number] = {rank for rank in RANKS if rank != killed}
        for rank in self._saves[number]:
            self._seal(self._world, rank, self._newest, number)
        self._crashed = killed is not None

    def _seal(self, world: World, rank: int, state: State, number: int) -> None:
        content = self._form.bytes_of(state.step, number, rank)
        world.slots[rank].allocate(ArenaRequest(0, len(content)))
        with world.slots[rank].arena(0).fill() as filling:
            os.pwrite(filling.descriptor, content, 0)
            filling.seal(
                state=state, length=len(content), rank=rank, world_size=len(RANKS),
                replicated=self._form.replicated, pieces=self._form.pieces,
            )  # fmt: skip

    @precondition(lambda self: self._newest.save and not (self._crashed or self._failed))
    @rule(ranks=some_ranks)
    def write(self, ranks: set[int]) -> None:
        """Some ranks' files of the newest save are written; their reports are under way."""
        for rank in ranks:
            with contextlib.suppress(errors.CheckpointExists):
                report = self._write(self._world, rank, self._round)
                self._reports.append(_Report(self._world.commits, len(self._saves), report))

    def _write(self, world: World, rank: int, current: RoundId) -> RankPersisted:
        slots = world.slots[rank]
        assignment = RankAssignment(rank, len(RANKS), current)
        slots.assignments.set(0, assignment)
        writer = RateLimitedWriter(world.storage, RateLimiter(0))
        return rank_file.write_rank_file(writer, slots, 0, slots.arena(0).sealed()[0], assignment)

    @precondition(lambda self: self._reports and not self._failed)
    @rule(index=st.integers(0, 5), count=st.integers(1, 6))
    def deliver(self, index: int, count: int) -> None:
        """Some of the newest reports arrive, each at the coordinator that it was sent to."""
        for sent in self._reports[-1 - index :][:count]:
            with contextlib.suppress(errors.StorageError):
                self._runner.run(sent.coordinator._committer.on_rank_durable(sent.report))
            committed = sent.coordinator._committer.committed
            runs = (
                sent.coordinator is self._world.commits and sent.report.state.round == self._round
            )
            if runs and committed is not None and committed.state == sent.report.state:
                self._promised = max(self._promised, sent.save)

    @precondition(lambda self: not self._failed)
    @rule()
    def replace_coordinator(self) -> None:
        """The first pod is lost to the others; the former coordinator does not know."""
        generation = self._world.storage.last_generation() + 1
        self._begin(self._world.start_coordinator(), generation)

    @precondition(lambda self: not self._failed)
    @rule(lost=some_ranks)
    def restart(self, lost: set[int]) -> None:
        """A new round; some pods have lost their memory."""
        generation = self._world.storage.last_generation()
        self._round = RoundId(generation, self._round.number + 1)
        for rank in lost:
            arena = self._world.slots[rank].arena(0)
            for seal in arena.sealed():
                arena.discard(seal)
        self._harmed = self._harmed or bool(lost)
        try:
            replies = self._runner.run(self._restore_all())
        except errors.ClusterUnavailable:  # no other pod's memory can be read in this process
            self._failed = True
            return
        except errors.CheckpointError:
            # Of a first save that one rank alone has sealed nobody knows whether it was whole.
            assert self._harmed or not self._whole_saves()
            self._failed = True
            return
        self._crashed = False
        (found,) = {reply.state for reply in replies}
        if found is None:
            assert self._promised == 0
            assert self._harmed or not self._whole_saves()
            self._newest = State(self._round, 0, 0)
            return
        numbers = {self._number(rank, reply) for rank, reply in enumerate(replies)}
        assert len(numbers) == 1, "ranks restored different saves"
        (number,) = numbers
        assert number in self._whole_saves(), "not every rank had sealed it"
        assert number >= self._promised, "older than promised"
        self._newest = found.restored_in(self._round)

    def _whole_saves(self) -> set[int]:
        """Saves that can be restored: of all ranks, or of one where all hold the same."""
        least = 1 if self._form.replicated else len(RANKS)
        return {number for number, ranks in self._saves.items() if len(ranks) >= least}

    def _number(self, rank: int, reply: object) -> int:
        data = pathlib.Path(reply.path).read_bytes()[: reply.snapshot_bytes]
        return self._form.check(data, reply.state.step, rank)

    async def _restore_all(self) -> list[object]:
        asked = [
            restorer.restore(
                RestoreRequest(0, rank, len(RANKS), self._round, requested=self._form.wanted(rank))
            )
            for rank, restorer in enumerate(self._world._restorers)
        ]
        return await asyncio.gather(*asked)

    @precondition(lambda self: not self._failed)
    @rule()
    def rival(self) -> None:
        """Another job of the same path saves, writes and reports."""
        state = State(RoundId(1, 1), 9)
        for rank in RANKS:
            self._seal(self._rival, rank, state, -1)
            report = self._write(self._rival, rank, state.round)
            with contextlib.suppress(errors.NotOwner):
                self._runner.run(self._rival.commits._committer.on_rank_durable(report))

    @precondition(lambda self: not self._failed)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        """A byte of a checkpoint changes: no promise holds for what storage does."""
        folders = self._world.storage.complete_folders()
        files = [path for f in folders for path in pathlib.Path(f.location).glob("rank-*")]
        if files:
            path = data.draw(st.sampled_from(sorted(files)))
            content = bytearray(path.read_bytes())
            content[-1] ^= 1
            path.write_bytes(content)
            self._harmed, self._promised = True, 0

    @rule(seconds=st.floats(-1e9, 1e9))
    def jump(self, seconds: float) -> None:
        """The node's clock is set."""
        self._offset = seconds

    def teardown(self) -> None:
        """Each checkpoint on storage is this job's."""
        with self._stack:
            for folder in self._world.storage.complete_folders():
                assert self._world.storage.read_manifest(folder).owner == "default/demo"


TestJob = Job.TestCase
TestJob.settings = settings(
    max_examples=int(os.environ.get("ROVER_STATE_EXAMPLES", "12")),
    stateful_step_count=int(os.environ.get("ROVER_STATE_STEPS", "50")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
