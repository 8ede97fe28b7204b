# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Stragglers at the coordinator: each is told once a round, with its pod and node."""

from __future__ import annotations

from rover_kf.api import names
from rover_kf.api.membership import Round
from rover_kf.api.samples import StepReport
from rover_kf.elastic import stragglers
from rover_kf.elastic.stragglers import Stragglers
from rover_kf.sidecar.story import Chronicle


class SlowRanks:
    """One a coordinator.

    Args:
        chronicle: where they are told.
    """

    def __init__(self, chronicle: Chronicle) -> None:
        self._chronicle = chronicle
        self._round: Round | None = None
        self._stragglers = Stragglers(0, 0)

    def formed(self, current: Round) -> None:
        """A round begins: its ranks are other processes."""
        self._round = current
        self._stragglers = Stragglers(current.number, current.world_size)

    def heard(self, report: StepReport) -> None:
        """A training process tells of steps."""
        for found in self._stragglers.heard(report):
            message = (
                f"rank {found.rank} in {self._place(found.rank)} takes {found.seconds:.3g} s of a "
                f"step by itself, {found.seconds / found.others:.1f} times the others' "
                f"{found.others:.3g} s, in {stragglers.SLOW_WINDOWS} of the last "
                f"{stragglers.WINDOWS} windows of {stragglers.WINDOW_STEPS} steps: they wait for it"
            )
            self._chronicle.record(names.EVENT_STRAGGLER, message, warning=True)

    def _place(self, rank: int) -> str:
        members = self._round.members if self._round else ()
        every = [member for member in members for _ in range(member.processes)]
        member = every[rank]
        return f"{member.pod} on {member.node}" if member.node else member.pod
