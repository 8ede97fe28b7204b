# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A process or the power ends after any single call of the file system: a whole step is restored.

The step is never older than the newest one that was said to be durable, and every byte is compared.
"""

from __future__ import annotations

import asyncio
import pathlib
import shutil

import pytest

from tests.support.faults.recorded_disk import (
    Call,
    History,
    Recorder,
    Tree,
    key_of,
    materialise,
)
from tests.support.pods.checkpoint_world import World, in_memory, running
from tests.support.states.synthetic_states import FORMS, Form

LATER = 100
"""Number of a round after all others."""


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


class Disks:
    """Restores from disks that crashes left; each different one once.

    Args:
        memory: where disks and slots are made.
        form: of the state.
        runner: of coroutines.
        go_on: the next step is persisted as well, and what the crash left is gone then.
    """

    def __init__(
        self, memory: pathlib.Path, form: Form, runner: asyncio.Runner, *, go_on: bool = False
    ) -> None:
        self._memory, self._form, self._runner = memory, form, runner
        self._go_on = go_on
        self._known: dict[frozenset[tuple[str, int]], int] = {}
        self.asked = 0

    @property
    def different(self) -> int:
        """How many were restored from."""
        return len(self._known)

    def restored(self, tree: Tree) -> int:
        """The step; 0 if the training begins anew."""
        self.asked += 1
        key = key_of(tree)
        if key not in self._known:
            top = self._memory / "disk"
            materialise(tree, top)
            world = World(self._memory / "restored", top, self._form, self._runner)
            world.forget()
            world.begin()
            self._known[key], _ = world.restore(LATER)
            if self._go_on:
                world.persist(self._known[key] + 1, LATER)
                assert world.is_tidy(self._known[key] + 1)
            assert not world.warnings()
            shutil.rmtree(top)
        return self._known[key]


def _reported(reported: list[tuple[int, int]], calls: int) -> int:
    """The newest step that was said to be durable in so many calls."""
    return max((step for done, step in reported if done <= calls), default=0)


def _three_steps(world: World, first: int, round_: int) -> None:
    """Steps become durable one after the other, and each retention removes the one before."""
    for step in range(first, first + 3):
        world.persist(step, round_, (0, 1) if step % 2 else (1, 0))


@pytest.mark.parametrize("kind", FORMS)
def test_a_crash_or_a_power_cut_after_any_call_costs_no_durable_step(memory, runner, kind):
    """Three steps with retention: after each call, with any of what was not synced lost."""
    form, top = Form(kind), memory / "pvc"
    top.mkdir()
    disk, disks = Recorder(top), Disks(memory, form, runner, go_on=True)
    world = World(memory / "pods", top, form, runner, files=disk)
    _three_steps(world, 1, world.begin())
    found = set()
    for point in range(len(disk.calls) + 1):
        history = History.of(tuple(disk.calls[:point]))
        newest = _reported(world.storage.reported, point)
        for tree in (history.left(), *history.cut()):
            step = disks.restored(tree)
            assert newest <= step <= newest + 1, (point, disk.calls[point - 1].name)
            found.add(step)
    print(f"{kind}: {point + 1} points, {disks.asked} disks, {disks.different} different ones")
    assert found == {0, 1, 2, 3}


def _second_life(
    memory: pathlib.Path, form: Form, runner: asyncio.Runner, before: tuple[Call, ...]
) -> tuple[World, Recorder, int]:
    """All pods start anew on what a crash left, restore, and persist the next step."""
    top = memory / "pvc"
    materialise(History.of(before).left(), top)
    disk = Recorder(top, before)
    world = World(memory / "pods", top, form, runner, files=disk)
    number = world.begin()
    step, _ = world.restore(number)
    world.persist(step + 1, number)
    return world, disk, step + 1


@pytest.mark.parametrize(("kind", "every"), [("replicated", 1), ("own", 7)])
def test_a_power_cut_in_the_life_after_a_crash_costs_no_durable_step(memory, runner, kind, every):
    """The process dies after each call of step 2's persist; the next one goes on over what is
    there, synced or not, tidies it up, and the power ends after each call of that."""
    form, disks = Form(kind), Disks(memory, Form(kind), runner)
    (memory / "first" / "pvc").mkdir(parents=True)
    first = Recorder(memory / "first" / "pvc")
    world = World(memory / "first" / "pods", memory / "first" / "pvc", form, runner, files=first)
    _three_steps(world, 1, world.begin())
    (begin, _), (end, _), _ = world.storage.reported
    points = 0
    for death in range(begin, end + 6, every):
        again, disk, last = _second_life(
            memory / "second", form, runner, tuple(first.calls[:death])
        )
        reported = [item for item in world.storage.reported if item[0] <= death]
        reported += again.storage.reported
        for point in range(death, len(disk.calls) + 1):
            points += 1
            history, newest = History.of(tuple(disk.calls[:point])), _reported(reported, point)
            for tree in (history.left(), *history.cut()):
                assert newest <= disks.restored(tree) <= last, (death, point)
        assert again.is_tidy(last)
        shutil.rmtree(memory / "second")
    print(f"{kind}: {points} points, {disks.asked} disks, {disks.different} different ones")


def test_a_power_cut_after_a_sidecar_died_in_its_write_costs_no_durable_step(memory, runner):
    """Rank 0's sidecar dies after each call of its write and writes again in the same round; the
    step becomes durable, and all that was not synced is lost."""
    form = Form("replicated")
    disks, deaths = Disks(memory, form, runner), 0
    (memory / "first" / "pvc").mkdir(parents=True)
    first = Recorder(memory / "first" / "pvc")
    world = World(memory / "first" / "pods", memory / "first" / "pvc", form, runner, files=first)
    world.save(1, 1)
    world.write(0, 1, 1)
    for death in range(len(first.calls) + 1):
        top, before = memory / "second", tuple(first.calls[:death])
        materialise(History.of(before).left(), top)
        disk = Recorder(top, before)
        again = World(memory / "first" / "pods", top, form, runner, files=disk)
        for rank in (0, 1):
            assert again.report(again.write(rank, 1, 1)).done
        ((durable, step),) = again.storage.reported
        assert step == 1
        for tree in History.of(tuple(disk.calls[:durable])).cut():
            assert disks.restored(tree) == 1, death
        shutil.rmtree(top)
        deaths += 1
    print(f"{deaths} deaths, {disks.asked} disks, {disks.different} different ones")
    assert deaths > 10
