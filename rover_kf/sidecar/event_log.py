# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The job's story: every sidecar tells, the coordinator keeps, the controller reads what is new."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import logging

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import Event
from rover_kf.api.status import Ack
from rover_kf.sidecar.interfaces import PeerClient
from rover_kf.sidecar.tasks import run_forever
from rover_kf.system.steady_clock import MonotonicWallClock

_log = logging.getLogger(__name__)

MAX_EVENTS = 256
"""Events kept; of what is told most often the oldest goes for a new one: hundreds of ranks that say
what they resume from must not take the place of the one that says why."""
MAX_MESSAGE_LENGTH = 1000
"""Characters; a Kubernetes Event takes 1024."""


class EventLog:
    """The coordinator's side; a Story for its own sidecar too."""

    def __init__(self, source: str) -> None:
        self._source, self._clock = source, MonotonicWallClock()
        self._events: list[Event] = []
        self.sequence = 0
        """Of the newest event."""
        self.counts: collections.Counter[str] = collections.Counter()
        """How often each was told; of the first so many names."""

    def record(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Add an event of this pod's."""
        self.add(Event(reason, message, warning, self._clock.now(), 0, self._source))

    def add(self, event: Event) -> None:
        """Add any pod's event."""
        self.sequence += 1
        if len(self.counts) < MAX_EVENTS or event.reason in self.counts:
            self.counts[event.reason] += 1
        kept = dataclasses.replace(
            event, sequence=self.sequence, message=event.message[:MAX_MESSAGE_LENGTH]
        )
        self._events.append(kept)
        if len(self._events) > MAX_EVENTS:
            reasons = collections.Counter(one.reason for one in self._events)
            ((commonest, _),) = reasons.most_common(1)
            self._events.remove(next(one for one in self._events if one.reason == commonest))
        level = logging.WARNING if event.warning else logging.INFO
        _log.log(level, "%s: %s", event.reason, event.message)

    def after(self, sequence: int) -> tuple[Event, ...]:
        """Events above that sequence number."""
        return tuple(event for event in self._events if event.sequence > sequence)


class EventForwarder:
    """The other pods' side: a Story whose events go to the coordinator."""

    def __init__(self, source: str, peers: PeerClient) -> None:
        self._source, self._peers = source, peers
        self._clock = MonotonicWallClock()
        self._events: asyncio.Queue[Event] = asyncio.Queue(maxsize=MAX_EVENTS)
        self._task: asyncio.Task[None] | None = None

    def record(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Tell an event; it is on its way when this returns."""
        event = Event(reason, message, warning, self._clock.now(), 0, self._source)
        _log.log(logging.WARNING if warning else logging.INFO, "%s: %s", reason, message)
        try:
            self._events.put_nowait(event)
        except asyncio.QueueFull:
            _log.warning("too many events wait for the coordinator; this one stays in the log")

    async def start(self) -> None:
        """Begin to deliver."""
        self._task = run_forever(self._deliver)

    async def stop(self) -> None:
        """Stop delivering."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _deliver(self) -> None:
        while True:
            event = await self._events.get()
            try:
                await self._peers.call_coordinator(names.PATH_EVENTS, event, Ack)
            except errors.RoverError as error:
                _log.warning("the coordinator was not told of %s: %s", event.reason, error)
