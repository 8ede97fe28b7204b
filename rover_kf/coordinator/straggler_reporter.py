# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Stragglers at the coordinator: each is told once a round, with its pod and node.

For as long as the rule holds it stands in the status, for a controller that may replace it.
"""

from __future__ import annotations

from rover_kf.api import names
from rover_kf.api.membership import Member, Round
from rover_kf.api.samples import StepReport
from rover_kf.api.status import Straggler
from rover_kf.elastic import stragglers
from rover_kf.elastic.stragglers import StragglerDetector, StragglerRank
from rover_kf.sidecar.event_log import EventLog


class StragglerReporter:
    """One a coordinator.

    Args:
        event_log: where they are told.
    """

    def __init__(self, event_log: EventLog) -> None:
        self._event_log = event_log
        self._round: Round | None = None
        self._stragglers = StragglerDetector(0, 0)
        self._since: dict[int, float] = {}

    def on_round_started(self, current: Round) -> None:
        """A round begins: its ranks are other processes."""
        self._round = current
        self._stragglers = StragglerDetector(current.number, current.world_size)
        self._since = {}

    def on_report(self, report: StepReport, now: float) -> None:
        """A training process tells of steps; now in Unix seconds."""
        for found in self._stragglers.on_report(report):
            message = (
                f"rank {found.rank} in {self._location(found.rank)} takes "
                f"{found.seconds:.3g} s of a "
                f"step by itself, {found.seconds / found.others_seconds:.1f} times the others' "
                f"{found.others_seconds:.3g} s, in {stragglers.SLOW_WINDOWS} of the last "
                f"{stragglers.WINDOWS} windows of {stragglers.WINDOW_STEPS} steps: they wait for it"
            )
            self._event_log.record(names.EVENT_STRAGGLER, message, warning=True)
        ranks = {found.rank for found in self._stragglers.current}
        self._since = {rank: self._since.get(rank, now) for rank in ranks}

    @property
    def current(self) -> tuple[Straggler, ...]:
        """For whom the rule holds now; none while their round does not run."""
        return tuple(self._slow_pod(found) for found in self._stragglers.current)

    def _slow_pod(self, straggler: StragglerRank) -> Straggler:
        member = self._member(straggler.rank)
        ratio = round(straggler.seconds / straggler.others_seconds, 2)
        return Straggler(
            member.pod, member.node, straggler.rank, ratio, self._since[straggler.rank]
        )

    def _location(self, rank: int) -> str:
        member = self._member(rank)
        return f"{member.pod} on {member.node}" if member.node else member.pod

    def _member(self, rank: int) -> Member:
        members = self._round.members if self._round else ()
        return [member for member in members for _ in range(member.processes)][rank]
