# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the job's steps tell the coordinator: progress, windows, goodput, how long changes took.

coordinator.py feeds it with the rounds' begin and end and with the trainers' reports. Times are
Unix seconds; a sample's own time is held between the change that it follows and now, since nodes'
clocks differ.
"""

from __future__ import annotations

from rover_kf.api.membership import Round
from rover_kf.api.samples import Goodput, StepReport
from rover_kf.metrics.goodput import Account
from rover_kf.metrics.windows import Windows


class Telemetry:
    """One a coordinator.

    Args:
        window_seconds: length of a throughput window.
        started_at: when the job's account begins.
    """

    def __init__(self, window_seconds: float, started_at: float) -> None:
        self.windows = Windows(window_seconds)
        self.step = 0
        """Newest step that was reported in the newest round that reported any."""
        self.total_steps: int | None = None
        self.restart_seconds = 0.0
        self.stepping = False
        """Whether every rank of the current round has stepped."""
        self._account = Account(started_at, since=started_at)
        self._round: Round | None = None
        self._over = False
        """Whether the newest round has ended and none has followed yet."""
        self._ranks: set[int] = set()
        self._best = 0
        self._redo_until = 0
        self._broken_at: float | None = None

    def formed(self, current: Round) -> None:
        """A round starts."""
        self._round, self._ranks, self.stepping = current, set(), False
        self._over = False
        self.windows.begin(
            current.number, nodes=len(current.members), world_size=current.world_size
        )

    def broken(self, now: float, *, planned: bool) -> None:
        """The round has ended."""
        if self._broken_at is None:
            self._broken_at = now
        # A world that has not stepped since an earlier change still pays for that one.
        if self.stepping or self._best:
            self._account = self._account.enter("scaling" if planned else "recovery", now)
        self._redo_until, self.stepping = self._best, False
        self._over = True

    def report(self, report: StepReport, now: float) -> float | None:
        """Take a report; returns the seconds that a change took, when it is over."""
        if self._round is None or report.round != self._round.number or not report.samples:
            return None
        self.total_steps = report.total_steps or self.total_steps
        newest = max(sample.step for sample in report.samples)
        self.step = max(self.step, newest) if self._ranks else newest
        self._best = max(self._best, newest)
        self._ranks.add(report.rank)
        for whole in self.windows.observe(report):
            self._account = self._account.save(whole.save_seconds)
        took = None
        if self._over:
            # A report that was on its way when the round ended is no sign of recovery.
            self._redo_until = self._best
        elif not self.stepping and len(self._ranks) >= self._round.world_size:
            self.stepping = True
            took = self._changed(min(report.samples[0].ended_at, now))
        if self.stepping and newest > self._redo_until:
            self._account = self._account.enter("productive", min(report.samples[-1].ended_at, now))
        return took

    def goodput(self, now: float) -> Goodput:
        """The account of the job's seconds."""
        return self._account.totals(now)

    def _changed(self, at: float) -> float | None:
        if self._broken_at is None:
            return None
        self.restart_seconds = max(at - self._broken_at, 0.0)
        self._broken_at = None
        return self.restart_seconds
