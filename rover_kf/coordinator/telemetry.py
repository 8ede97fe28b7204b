# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the job's steps tell the coordinator: progress, windows, goodput, how long changes took.

coordinator.py feeds it with the rounds' begin and end and with the trainers' reports. Times are
Unix seconds; a sample's own time is held between the change that it follows and now, since nodes'
clocks differ.
"""

from __future__ import annotations

from rover_kf.api.coordinator_state import TelemetryState
from rover_kf.api.membership import Round
from rover_kf.api.samples import Goodput, StepReport
from rover_kf.metrics.dataset_progress import DatasetProgress
from rover_kf.metrics.goodput import GoodputAccount
from rover_kf.metrics.resource_usage import ResourcePeaks
from rover_kf.metrics.windows import ThroughputWindows


class Telemetry:
    """One a coordinator.

    Args:
        window_seconds: length of a throughput window.
        started_at: when the job's account begins.
    """

    def __init__(self, window_seconds: float, started_at: float) -> None:
        self.windows = ThroughputWindows(window_seconds)
        self.usage = ResourcePeaks()
        self.dataset_progress = DatasetProgress()
        self.step = 0
        """Newest step that was reported in the newest round that reported any."""
        self.total_steps: int | None = None
        self.restart_seconds = 0.0
        self.stepping = False
        """Whether every rank of the current round has stepped."""
        self._account = GoodputAccount.begin(started_at)
        self._round: Round | None = None
        self._over = False
        """Whether the newest round has ended and none has followed yet."""
        self._cause = "recovery"
        """Bucket of the change that is under way, or was last."""
        self._ranks: set[int] = set()
        self._best = 0
        self._redo_until = 0
        self._ended_at: float | None = None
        self._imported_round = 0

    def on_round_started(self, current: Round, now: float) -> None:
        """A round starts, or one that runs was taken over."""
        recalled, self._imported_round = self._imported_round, 0
        if self._best and recalled and recalled != current.number:
            # Nobody saw that one end: the last step of it that was told was its last.
            self._redo_until = self._best
            self._account = self._account.reassign(self._cause)
        if self._best and recalled != current.number:
            self._account = self._account.enter(self._cause, now)
        self._round, self._ranks, self.stepping = current, set(), False
        self._over = False
        self.usage.begin(len(current.members), current.world_size)
        self.dataset_progress.begin()
        self.windows.begin(
            current.number, nodes=len(current.members), world_size=current.world_size
        )

    def on_round_ended(self, now: float, *, planned: bool) -> None:
        """The round has ended; its members are called together for the next."""
        if self._ended_at is None:
            self._ended_at = now
        self._cause = "scaling" if planned else "recovery"
        # Before the first step of all, the job still waits for its first start.
        if self._best:
            if self.stepping:
                # Since the last step of all ranks another had begun, and came to nothing.
                self._account = self._account.reassign(self._cause)
            self._account = self._account.enter(self._change_bucket, now)
        self._redo_until, self.stepping = self._best, False
        self._over = True

    def pods_missing(self, now: float, *, missing: bool) -> None:
        """Whether those who are there could start a round, if only the others came."""
        bucket = "waiting" if missing else self._change_bucket
        if self._over and self._best and self._account.bucket != bucket:
            self._account = self._account.enter(bucket, now)

    def report(self, report: StepReport, now: float) -> float | None:
        """Take a report; returns the seconds that a change took, when it is over."""
        if self._round is None or report.round != self._round.number:
            return None
        self.usage.on_report(report, now)
        self.dataset_progress.on_report(report, now)
        if not report.samples:
            return None
        self.total_steps = report.total_steps or self.total_steps
        newest = max(sample.step for sample in report.samples)
        self.step = max(self.step, newest) if self._ranks else newest
        self._best = max(self._best, newest)
        self._ranks.add(report.rank)
        whole_steps = self.windows.observe(report)
        took = None
        if self._over:
            # A report that was on its way when the round ended is no sign of recovery.
            self._redo_until = self._best
            return None
        if not self.stepping and len(self._ranks) >= self._round.world_size:
            self.stepping = True
            took = self._on_resumed(min(report.samples[0].ended_at, now))
        for whole in whole_steps:
            ended = min(whole.ended_at, now)
            self._account = self._account.step(
                ended - whole.seconds,
                ended,
                saving=whole.save_seconds,
                redone=whole.step <= self._redo_until,
            )
        return took

    def goodput(self, now: float) -> Goodput:
        """The account of the job's seconds."""
        return self._account.totals(now)

    @property
    def account_from(self) -> float:
        """When the account was begun; Unix seconds."""
        return self._account.started_at

    def export_state(self) -> TelemetryState:
        """What of it must outlive this process."""
        running = self._round is not None and not self._over
        return TelemetryState(
            started_at=self._account.started_at,
            settled_at=self._account.settled_at,
            spent=self._account.seconds(),
            bucket=self._account.bucket,
            round=self._round.number if self._round and running else 0,
            step=self.step,
            best=self._best,
            redo_until=self._redo_until,
            total_steps=self.total_steps,
        )

    def import_state(self, state: TelemetryState) -> None:
        """Go on from a memory: what follows is as it was, if the round still runs."""
        if state.started_at >= self._account.started_at:
            return
        self._account = GoodputAccount.restore(
            state.started_at, state.settled_at, bucket=state.bucket, spent=state.spent
        )
        self._imported_round, self._redo_until = state.round, state.redo_until
        self._over = not state.round
        self.step, self._best = max(self.step, state.step), max(self._best, state.best)
        self.total_steps = self.total_steps or state.total_steps

    @property
    def _change_bucket(self) -> str:
        return "rendezvous" if self._cause == "recovery" else "scaling"

    def _on_resumed(self, timestamp: float) -> float | None:
        if self._ended_at is None:
            return None
        self.restart_seconds = max(timestamp - self._ended_at, 0.0)
        self._ended_at = None
        return self.restart_seconds
