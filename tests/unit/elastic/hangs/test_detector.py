# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""When silence is a hang, in simulated time, and what stacks tell of it."""

from __future__ import annotations

import pytest

from rover_kf.api.faults import hang_reports as at
from rover_kf.api.faults.hang_reports import RankStack, StackReport
from rover_kf.api.membership import Member, Round
from rover_kf.api.policy import HangPolicy
from rover_kf.api.samples import StepReport, StepSample
from rover_kf.elastic.hangs import monitor
from rover_kf.elastic.hangs.monitor import (
    HangAction,
    HangDetected,
    HangMonitor,
    HangResolved,
    RequestStacks,
)

LIMITS = HangPolicy(action="restart", min_seconds=300, pause_min_seconds=1800, factor=10)
PODS = tuple(Member(f"job-worker-{index}", f"i{index}", index, 1) for index in range(2))

WAITING = """Thread 0x00007f01 (most recent call first):
  File "/lib/python3.11/threading.py", line 320 in wait

Current thread 0x00007f02 (most recent call first):
  File "/venv/site-packages/torch/distributed/distributed_c10d.py", line 2501 in all_reduce
  File "/app/train.py", line 35 in <module>
"""
READING = """Thread 0x00007f03 (most recent call first):
  File "/lib/python3.11/ssl.py", line 1166 in read
  File "/app/data.py", line 7 in next_batch
  File "/app/train.py", line 30 in <module>
"""


class World:
    """Two ranks and a watch, a second at a time."""

    def __init__(self, limits: HangPolicy = LIMITS) -> None:
        self.now = 1000.0
        self.watch = HangMonitor(limits)
        self.number = 0
        self.form()

    def form(self) -> None:
        self.number += 1
        self.watch.on_round_started(Round(self.number, PODS, 2, "host", 1))

    def say(self, phase: str, *steps: int, ranks=(0, 1), seconds: float = 1.0) -> None:
        samples = tuple(StepSample(step, self.now, seconds) for step in steps)
        for rank in ranks:
            report = StepReport(rank, 2, self.number, samples, phase=phase)
            self.watch.on_report(report)

    def wait(self, seconds: int) -> list[HangAction]:
        """Let time pass until something is ordered."""
        for _ in range(seconds):
            self.now += 1
            order = self.watch.tick(self.now, self.now + 5000)
            if order is not None:
                return [order]
        return []

    def train(self, first: int, last: int, *, seconds: float = 1.0) -> None:
        for step in range(first, last + 1):
            self.say(at.TRAINING, step, seconds=seconds)
            assert self.wait(1) == []

    def answer(self, *texts: str) -> None:
        for rank, text in enumerate(texts):
            stack = RankStack(rank, "S (sleeping)" if text else "T (stopped)", text)
            self.watch.on_stacks(StackReport(PODS[rank].pod, self.number, (stack,)))


def test_silence_is_a_hang_after_the_floor():
    """Stacks are asked for first; the one whose absence all wait for is named with its place."""
    world = World()
    world.train(1, 5)
    assert world.wait(298) == []
    assert world.wait(2) == [RequestStacks()]
    world.answer(WAITING, READING)
    (found,) = world.wait(1)
    assert isinstance(found, HangDetected)
    hang = found.hang
    assert (hang.step, hang.round, hang.restarted, hang.limit) == (5, 1, True, 300)
    assert hang.at == world.now + 5000
    assert hang.message == (
        "no step for 301 s after step 5 (allowed: 300 s): rank 1 (job-worker-1) did not arrive: "
        "stands in read (ssl.py:1166), called by next_batch (data.py:7); rank 0 (job-worker-0) "
        "waits in all_reduce (distributed_c10d.py:2501), called by <module> (train.py:35); the "
        "processes are restarted and go on from memory"
    )
    assert [(group.ranks, group.late) for group in hang.stacks] == [((1,), True), ((0,), False)]
    assert world.wait(100) == [], "told once"


def test_slow_steps_have_longer():
    """Ten times the slowest of a hundred steps, if that is more than the floor."""
    world = World()
    world.train(1, 20, seconds=60)
    assert world.wait(590) == []
    assert world.wait(20) == [RequestStacks()]


@pytest.mark.parametrize("phase", [at.EVALUATION, at.CHECKPOINT])
def test_pauses_have_longer(phase):
    """An evaluation or a checkpoint of one rank, and what it took does not make steps slow."""
    world = World()
    world.train(1, 5)
    world.say(phase, ranks=(1,))
    assert world.wait(1790) == []
    world.say(at.TRAINING, ranks=(1,))
    assert world.wait(290) == [], "the step's own time begins when the pause ends"
    world.say(at.TRAINING, 6, seconds=2080)
    world.train(7, 9)
    assert world.wait(310) == [RequestStacks()]


def test_first_step_has_longer():
    """As long as no rank has stepped; also where one has said nothing at all yet."""
    world = World()
    world.say(at.START, ranks=(0,))
    assert world.wait(1790) == []
    assert world.wait(20) == [RequestStacks()]


def test_the_first_step_of_one_is_that_of_all():
    """A rank that stops before its first step is told is waited for no longer than any other."""
    world = World()
    world.say(at.START)
    assert world.wait(1000) == []
    world.say(at.TRAINING, 1, ranks=(0,))
    assert world.wait(290) == []
    assert world.wait(20) == [RequestStacks()]


def test_a_pause_that_ended_well_is_no_hang_the_next_time():
    """A script that pauses without a word is restarted once at most for it."""
    world = World()
    world.train(1, 5)
    assert world.wait(300) == [RequestStacks()]
    (found,) = world.wait(5)
    assert found.hang.restarted
    world.watch.on_round_ended()
    world.form()
    world.train(3, 5)
    assert world.wait(300) == [RequestStacks()]
    (found,) = world.wait(5)
    assert not found.hang.restarted
    assert found.hang.message.endswith("told only: a restart at this step did not help")
    world.say(at.TRAINING, 6, seconds=320)
    (over,) = world.wait(1)
    assert over == HangResolved(pytest.approx(308, abs=3))
    world.train(7, 10)
    assert world.wait(620) == []


def test_what_a_dead_process_was_at_is_forgotten():
    """A round's words go with it; a report of it that comes late is not taken."""
    world = World()
    world.train(1, 5)
    world.say(at.CHECKPOINT, ranks=(1,))
    world.watch.on_round_ended()
    assert world.wait(4000) == []
    world.say(at.CHECKPOINT, ranks=(1,))
    world.form()
    late = StepReport(1, 2, world.number - 1, (), phase=at.CHECKPOINT)
    world.watch.on_report(late)
    world.train(6, 8)
    assert world.wait(310) == [RequestStacks()]


def test_nothing_is_known_of_scripts_that_say_nothing():
    """No step, no phase: never a hang; nor after the last step of any rank."""
    world = World()
    assert world.wait(5000) == []
    world.train(1, 3)
    world.say(at.ENDED, ranks=(0,))
    assert world.wait(5000) == []


def test_a_stream_that_brings_nothing_is_no_hang():
    """However long; from the moment on that something came, a step may take what it may."""
    world = World()
    world.train(1, 3)
    world.say(at.WAITING)
    assert world.wait(5000) == []
    world.say(at.TRAINING)
    assert world.wait(290) == []
    assert world.wait(20) == [RequestStacks()]


def test_off_and_report():
    """The policy's word goes."""
    world = World(HangPolicy(action="off"))
    world.train(1, 3)
    assert world.wait(5000) == []
    world = World(HangPolicy(action="report"))
    world.train(1, 3)
    assert world.wait(300) == [RequestStacks()]
    (found,) = world.wait(5)
    assert not found.hang.restarted
    assert "no launcher sent stacks; told only, as hang.action says" in found.hang.message


def test_time_that_the_watch_slept_does_not_count():
    """A coordinator that was stopped heard nothing: that proves nothing."""
    world = World()
    world.train(1, 3)
    world.now += 3600
    assert world.wait(290) == []
    assert world.wait(20) == [RequestStacks()]


def test_who_gave_no_stack_is_late():
    """A stopped process among others that wait; with all alike nobody is blamed."""
    given = {rank: RankStack(rank, "S", WAITING) for rank in range(3)}
    assert monitor.missing_ranks({**given, 3: RankStack(3, "T (stopped)", "")}, range(5)) == {3, 4}
    assert monitor.missing_ranks(given, range(3)) == frozenset()
    reading = {rank: RankStack(rank, "S", READING) for rank in range(3)}
    assert monitor.missing_ranks(reading, range(3)) == frozenset()


def test_many_ranks_stay_bounded():
    """A thousand ranks in forty places: sixteen groups, each rank's text bounded, eight named."""
    texts = [WAITING.replace("35", str(place)) + 40_000 * "x" for place in range(40)]
    every = [RankStack(rank, "S", texts[rank % 40]) for rank in range(1000)]
    found = monitor.group_stacks(every, {999})
    assert found[0].ranks == (999,)
    assert len(found) == monitor.MAX_GROUPS
    assert all(len(group.text) <= monitor.LONGEST_TEXT for group in found)
    pods = {rank: f"pod-{rank}" for rank in range(1000)}
    assert monitor.format_ranks(range(1000), pods).endswith("7 (pod-7) and 992 more")


def test_a_restore_that_reads_from_storage_is_no_hang():
    """However long it takes; half an hour after the last byte it is one."""
    world = World()
    world.say(at.CHECKPOINT)
    for read_bytes in range(1, 10):
        world.watch.on_storage_read(read_bytes)
        assert world.wait(1700) == []
    world.watch.on_storage_read(9)
    assert isinstance(world.wait(300)[0], RequestStacks)
