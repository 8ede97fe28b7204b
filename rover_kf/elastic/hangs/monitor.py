# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""From what ranks say to a hang that is told: the rule, then everybody's stacks, then the act.

The coordinator feeds it with rounds, reports and time and does what it returns. Only time in which
the watch itself was awake counts: a coordinator that was stopped or away has heard nothing either.
"""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

from rover_kf.api.faults.hang_reports import ENDED, Hang, RankStack, StackReport
from rover_kf.api.membership import Round
from rover_kf.api.samples import StepReport
from rover_kf.elastic.hangs import detector, stacks
from rover_kf.elastic.hangs.detector import HangLimits, RankProgress, Stall, StepTimes

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
    """One a coordinator.

    Args:
        limits: by policy.
    """

    def __init__(self, limits: HangLimits) -> None:
        self._limits = limits
        self._step_times = StepTimes()
        self._round: Round | None = None
        self._ranks: dict[int, RankProgress] = {}
        self._stacks: dict[int, RankStack] = {}
        self._clock = self._ticked = 0.0
        self._began = 0.0
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

    def on_stacks(self, report: StackReport) -> None:
        """A launcher sends what it was asked for."""
        if self._round is not None and report.round == self._round.number:
            self._stacks.update((one.rank, one) for one in report.stacks)

    def tick(self, now: float, unix_time: float) -> HangAction | None:
        """Look at the clock.

        Args:
            now: monotonic seconds.
            unix_time: the same moment in Unix seconds.
        """
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
        late = (
            stacks.missing_ranks(self._stacks, range(current.world_size))
            if self._stacks
            else frozenset()
        )
        return Hang(
            at=unix_time,
            round=current.number,
            step=self._best,
            seconds=stall.seconds,
            limit=stall.limit,
            restarted=restart,
            message=self._message(current, stall, late, restart=restart, helped=helped),
            stacks=stacks.group_stacks(self._stacks.values(), late),
        )

    def _message(
        self,
        current: Round,
        stall: Stall,
        late: frozenset[int],
        *,
        restart: bool,
        helped: bool,
    ) -> str:
        begin = f"no step for {stall.seconds:.0f} s after step {self._best}"
        where = self._describe_stacks(current, late)
        if restart:
            then = "the processes are restarted and go on from memory"
        elif not helped:
            then = "told only: a restart at this step did not help"
        else:
            then = "told only, as hang.action says"
        return f"{begin} (allowed: {stall.limit:.0f} s): {where}; {then}"

    def _describe_stacks(self, current: Round, late: frozenset[int]) -> str:
        pods = pods_by_rank(current)
        if not self._stacks:
            return "no launcher sent stacks"
        found = stacks.group_stacks(self._stacks.values(), late)
        shown = []
        mute = late - self._stacks.keys()
        if mute:
            shown.append(f"{stacks.format_ranks(mute, pods)} did not arrive and gave no stack")
        for group in found[:3]:
            does = (
                "did not arrive: stands in" if group.late else "waits in" if late else "stands in"
            )
            place = group.place
            if not place:
                does = "did not arrive and gives" if group.late else "gives"
                place = f"no stack [{group.state or 'not asked'}]"
            shown.append(f"{stacks.format_ranks(group.ranks, pods)} {does} {place}")
        more = len(found) - 3
        return "; ".join(shown) + (f"; {more} other places" if more > 0 else "")

    def _reset(self) -> None:
        self._ranks.clear()
        self._stacks.clear()
        self._requested_at = self._reported_at = None
        self._paused = True


def pods_by_rank(current: Round) -> dict[int, str]:
    """The pod of each rank."""
    return {rank: pod for rank, (pod, _) in enumerate(current.rank_locations())}
