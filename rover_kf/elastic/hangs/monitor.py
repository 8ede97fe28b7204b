# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Hangs: the rule, then the stacks of all ranks, then the report and the restart.

Only time counts in which the monitor was awake: a stopped coordinator received no reports either.

Stacks are the text of Python's faulthandler: threads newest first, so that the main thread comes
last, and each thread's innermost call first.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from rover_kf.api.faults.hang_reports import ENDED, Hang, RankStack, StackGroup, StackReport
from rover_kf.api.membership import Round
from rover_kf.api.policy import HangPolicy
from rover_kf.api.samples import StepReport
from rover_kf.elastic.hangs import detector
from rover_kf.elastic.hangs.detector import RankProgress, Stall, StepTimes

MAX_GROUPS = 16
LONGEST_TEXT = 16 << 10
"""Characters of one group's stacks."""
MAX_LOCATION_LENGTH = 200
MAX_RANKS_SHOWN = 8

_FRAME = re.compile(r'^  File "([^"]*)", line (\d+) in (.*)$', re.MULTILINE)
_THREAD = re.compile(r"^(Current thread|Thread)(?: 0x[0-9a-f]+)?", re.MULTILINE)
_WAITS = ("/torch/distributed/", "/torch/autograd/", "/torch/cuda/", "/rover_kf/trainer/")
"""Folders of code that waits for ranks: collectives, backward pass, device, restore."""
_NOT_THE_SCRIPT = ("/lib/python", "/site-packages/", "/dist-packages/", "/rover_kf/", "<frozen ")


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """One call of a stack."""

    path: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({self.path.rpartition('/')[2]}:{self.line})"


def main_thread(text: str) -> tuple[Frame, ...]:
    """The main thread's calls, innermost first; empty if the text holds none."""
    last = _THREAD.split(text)[-1]
    found = _FRAME.findall(last)
    return tuple(Frame(path, int(line), function) for path, line, function in found)


def main_thread_location(text: str) -> str:
    """Where the main thread stands: its innermost call, and the script's own that led there."""
    frames = main_thread(text)
    if not frames:
        return ""
    own = (one for one in frames if not any(part in one.path for part in _NOT_THE_SCRIPT))
    script = next(own, frames[0])
    called = "" if script is frames[0] else f", called by {script}"
    return f"{frames[0]}{called}"[:MAX_LOCATION_LENGTH]


def in_collective(text: str) -> bool:
    """Whether the main thread stands in something that ends when other ranks arrive."""
    frames = main_thread(text)
    return bool(frames) and any(folder in frames[0].path for folder in _WAITS)


def missing_ranks(stacks: Mapping[int, RankStack], world: Collection[int]) -> frozenset[int]:
    """Return the ranks that the others wait for, as far as their stacks show."""
    waiting = {rank for rank in world if rank in stacks and in_collective(stacks[rank].text)}
    rest = frozenset(world) - waiting
    if waiting and rest:
        # Of those that do not wait, one that gave no stack at all is dead or stopped.
        mute = {rank for rank in rest if rank not in stacks or not stacks[rank].text}
        return frozenset(mute) or rest
    return frozenset()


def group_stacks(
    stacks: Iterable[RankStack], late_ranks: Collection[int]
) -> tuple[StackGroup, ...]:
    """Ranks that stand alike together, those that others wait for first; bounded."""
    alike: dict[tuple[str, str, bool], list[int]] = collections.defaultdict(list)
    for one in sorted(stacks, key=lambda stack: stack.rank):
        text = _THREAD.sub(r"\1", one.text)[:LONGEST_TEXT]
        alike[one.state, text, one.rank in late_ranks].append(one.rank)
    found = [
        StackGroup(tuple(ranks), state, main_thread_location(text), is_late, text)
        for (state, text, is_late), ranks in alike.items()
    ]
    found.sort(key=lambda group: (not group.late, len(group.ranks), group.ranks))
    return tuple(found[:MAX_GROUPS])


def format_ranks(ranks: Collection[int], pods: Mapping[int, str]) -> str:
    """``rank 3 (train-worker-1)``; of many the first ones and how many there are."""
    named = [f"{rank} ({pods[rank]})" if rank in pods else str(rank) for rank in sorted(ranks)]
    more = len(named) - MAX_RANKS_SHOWN
    shown = ", ".join(named[:MAX_RANKS_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return f"rank{'s' if len(named) > 1 else ''} {shown}"


STACK_SECONDS = 5.0
"""That launchers have to send the stacks of their processes."""
LONGEST_TICK = 1.0
"""Seconds between two looks that count in full; more were spent away."""


@dataclasses.dataclass(frozen=True, slots=True)
class RequestStacks:
    """Ask every member for the stacks of its processes."""


@dataclasses.dataclass(frozen=True, slots=True)
class HangDetected:
    """Tell a hang; ``hang.restarted`` says whether to restart the processes for it."""

    hang: Hang


@dataclasses.dataclass(frozen=True, slots=True)
class HangResolved:
    """A hang that was only told has ended by itself, after so many seconds."""

    seconds: float


HangAction: TypeAlias = RequestStacks | HangDetected | HangResolved


class HangMonitor:
    """A monitor of one coordinator's rounds for hangs."""

    def __init__(self, limits: HangPolicy) -> None:
        self._limits = limits
        self._step_times = StepTimes()
        self._round: Round | None = None
        self._ranks: dict[int, RankProgress] = {}
        self._stacks: dict[int, RankStack] = {}
        self._clock = self._ticked = 0.0
        self._began = 0.0
        self._read_bytes = 0
        self._paused = True  # since rank 0's last step some rank was at something else
        self._requested_at: float | None = None
        self._reported_at: float | None = None
        self._best = 0
        self._restarted_at: int | None = None

    def on_round_started(self, current: Round) -> None:
        """A round begins: nothing that was said in an earlier one counts any more."""
        self._round, self._began = current, self._clock
        self._reset()

    def on_round_ended(self) -> None:
        """The round has ended."""
        self._round = None
        self._reset()

    def on_report(self, report: StepReport) -> None:
        """A training process tells what it is at, or of steps."""
        if self._round is None or report.round != self._round.number:
            return
        before = self._ranks.get(report.rank)
        step = before.step if before else None
        for sample in report.samples:
            if report.rank == 0:
                self._step_times.add(sample.seconds - sample.save_seconds, pause=self._paused)
                self._paused = False
            step = max(step or 0, sample.step)
        self._best = max(self._best, step or 0)
        same = before is not None and (before.step, before.phase) == (step, report.phase)
        moved = before.changed_at if before and same else self._clock
        self._paused = self._paused or report.phase in detector.PAUSES
        self._ranks[report.rank] = RankProgress(step, report.phase, moved)

    def on_storage_read(self, read_bytes: int) -> None:
        """Ranks have read so many bytes of what they restore: while these grow nothing hangs."""
        if read_bytes != self._read_bytes:
            self._read_bytes, self._began = read_bytes, self._clock

    def on_stacks(self, report: StackReport) -> None:
        """A launcher sends what it was asked for."""
        if self._round is not None and report.round == self._round.number:
            self._stacks.update((one.rank, one) for one in report.stacks)

    def tick(self, now: float, unix_time: float) -> HangAction | None:
        """Advance the clock: ``now`` is monotonic, ``unix_time`` the same moment."""
        self._clock += min(max(now - self._ticked, 0.0), LONGEST_TICK)
        self._ticked = now
        if self._round is None:
            return None
        stall = detector.detect_stall(
            self._ranks.values(),
            began=self._began,
            step_times=self._step_times,
            limits=self._limits,
            now=self._clock,
        )
        if stall is None:
            return self._resumed()
        if self._reported_at is not None:
            return None
        if self._requested_at is None:
            self._requested_at = self._clock
            self._stacks.clear()
            return RequestStacks()
        whole = len(self._stacks) >= self._round.world_size
        if not whole and self._clock - self._requested_at < STACK_SECONDS:
            return None
        self._reported_at = self._clock - stall.seconds
        return HangDetected(self._describe(self._round, stall, unix_time))

    def _resumed(self) -> HangResolved | None:
        told_at, self._reported_at, self._requested_at = self._reported_at, None, None
        moved = max((one.changed_at for one in self._ranks.values()), default=self._clock)
        over = told_at is not None and all(one.phase != ENDED for one in self._ranks.values())
        return HangResolved(moved - told_at) if over and told_at is not None else None

    def _describe(self, current: Round, stall: Stall, unix_time: float) -> Hang:
        helped = self._restarted_at is None or self._best > self._restarted_at
        restart = self._limits.action == "restart" and helped
        if restart:
            self._restarted_at = self._best
            then = "the processes are restarted and go on from memory"
        elif not helped:
            then = "told only: a restart at this step did not help"
        else:
            then = "told only, as hang.action says"
        late: frozenset[int] = frozenset()
        if self._stacks:
            late = missing_ranks(self._stacks, range(current.world_size))
        groups = group_stacks(self._stacks.values(), late)
        return Hang(
            at=unix_time,
            round=current.number,
            step=self._best,
            seconds=stall.seconds,
            limit=stall.limit,
            restarted=restart,
            message=f"no step for {stall.seconds:.0f} s after step {self._best} (allowed: "
            f"{stall.limit:.0f} s): {self._describe_stacks(current, groups, late)}; {then}",
            stacks=groups,
        )

    def _describe_stacks(
        self, current: Round, groups: Sequence[StackGroup], late: frozenset[int]
    ) -> str:
        pods = {rank: pod for rank, (pod, _) in enumerate(current.rank_locations())}
        if not self._stacks:
            return "no launcher sent stacks"
        shown = []
        mute = late - self._stacks.keys()
        if mute:
            shown.append(f"{format_ranks(mute, pods)} did not arrive and gave no stack")
        for group in groups[:3]:
            does = (
                "did not arrive: stands in" if group.late else "waits in" if late else "stands in"
            )
            place = group.place
            if not place:
                does = "did not arrive and gives" if group.late else "gives"
                place = f"no stack [{group.state or 'not asked'}]"
            shown.append(f"{format_ranks(group.ranks, pods)} {does} {place}")
        more = len(groups) - 3
        return "; ".join(shown) + (f"; {more} other places" if more > 0 else "")

    def _reset(self) -> None:
        self._ranks.clear()
        self._stacks.clear()
        self._requested_at = self._reported_at = None
        self._paused = True
