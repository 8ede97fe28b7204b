# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Hangs at the coordinator: the watch is asked at each tick, what it finds is told and kept."""

from __future__ import annotations

import collections
import logging

from rover_kf.api import names
from rover_kf.api.faults.hang_reports import Hang
from rover_kf.api.policy import HangPolicy
from rover_kf.elastic.hangs.monitor import (
    HangDetected,
    HangMonitor,
    HangResolved,
    RequestStacks,
)
from rover_kf.elastic.rendezvous.effects import Effect
from rover_kf.elastic.rendezvous.rendezvous import Rendezvous
from rover_kf.sidecar.event_log import EventLog

_log = logging.getLogger(__name__)

MAX_HANGS = 4
"""Kept for a controller to fetch; with all stacks some may be large."""


class HangReporter:
    """One a coordinator.

    Args:
        limits: by policy.
        event_log: where they are told.
    """

    def __init__(self, limits: HangPolicy, event_log: EventLog) -> None:
        self.watch = HangMonitor(limits)
        self._event_log = event_log
        self._recent: collections.deque[tuple[int, Hang]] = collections.deque(maxlen=MAX_HANGS)

    def after(self, sequence: int) -> tuple[Hang, ...]:
        """Those whose Event has a sequence above that one."""
        return tuple(hang for known, hang in self._recent if known > sequence)

    def tick(self, rendezvous: Rendezvous, now: float, timestamp: float) -> tuple[Effect, ...]:
        """Look, and do what is due.

        Args:
            rendezvous: whose members are asked for stacks, or restarted.
            now: monotonic seconds.
            timestamp: the same moment in Unix seconds.
        """
        match self.watch.tick(now, timestamp):
            case RequestStacks():
                rendezvous.stack_request.begin()
            case HangDetected(hang):
                return self._on_hang(hang, rendezvous, now)
            case HangResolved(seconds):
                message = f"training goes on by itself, after {seconds:.0f} s"
                self._event_log.record(names.EVENT_HANG_RESOLVED, message)
        return ()

    def _on_hang(self, hang: Hang, rendezvous: Rendezvous, now: float) -> tuple[Effect, ...]:
        self._event_log.record(names.EVENT_HANG, hang.message, warning=True)
        self._recent.append((self._event_log.sequence, hang))
        for group in hang.stacks:
            _log.warning("ranks %s, %s:\n%s", group.ranks, group.state, group.text)
        return rendezvous.restart_hung(f"hang: {hang.message}", now) if hang.restarted else ()
