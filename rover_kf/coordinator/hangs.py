# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Hangs at the coordinator: the watch is asked at each tick, what it finds is told and kept."""

from __future__ import annotations

import collections
import logging

from rover_kf.api import names
from rover_kf.api.faults.hang_reports import Hang
from rover_kf.elastic.hangs.detector import HangLimits
from rover_kf.elastic.hangs.monitor import Collect, Found, HangWatch, Over
from rover_kf.elastic.rendezvous.effects import Effect
from rover_kf.elastic.rendezvous.rendezvous import Rendezvous
from rover_kf.sidecar.event_log import Chronicle

_log = logging.getLogger(__name__)

MOST_HANGS = 4
"""Kept for a controller to fetch; with all stacks some may be large."""


class Hangs:
    """One a coordinator.

    Args:
        limits: by policy.
        chronicle: where they are told.
    """

    def __init__(self, limits: HangLimits, chronicle: Chronicle) -> None:
        self.watch = HangWatch(limits)
        self._chronicle = chronicle
        self._kept: collections.deque[tuple[int, Hang]] = collections.deque(maxlen=MOST_HANGS)

    def after(self, sequence: int) -> tuple[Hang, ...]:
        """Those whose Event has a sequence above that one."""
        return tuple(hang for known, hang in self._kept if known > sequence)

    def tick(self, rendezvous: Rendezvous, now: float, at: float) -> tuple[Effect, ...]:
        """Look, and do what is due.

        Args:
            rendezvous: whose members are asked for stacks, or restarted.
            now: monotonic seconds.
            at: the same moment in Unix seconds.
        """
        match self.watch.tick(now, at):
            case Collect():
                rendezvous.stack_call.begin()
            case Found(hang):
                return self._found(hang, rendezvous, now)
            case Over(seconds):
                message = f"training goes on by itself, after {seconds:.0f} s"
                self._chronicle.record(names.EVENT_HANG_RESOLVED, message)
        return ()

    def _found(self, hang: Hang, rendezvous: Rendezvous, now: float) -> tuple[Effect, ...]:
        self._chronicle.record(names.EVENT_HANG, hang.message, warning=True)
        self._kept.append((self._chronicle.sequence, hang))
        for group in hang.stacks:
            _log.warning("ranks %s, %s:\n%s", group.ranks, group.state, group.text)
        return rendezvous.restart(f"hang: {hang.message}", now) if hang.restarted else ()
