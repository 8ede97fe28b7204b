# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The coordinator's desk for leased data over HTTP (rover_kf.data_sharding.dispatcher decides).

Every request is answered at once; who gets nothing asks again. Nothing is kept for a successor:
ranks register anew with it, and tell what they have used and hold.
"""

from __future__ import annotations

import collections
import dataclasses
import secrets
import time
from collections.abc import Iterable

from aiohttp import web

from rover_kf.api import names
from rover_kf.api.data import DataStatus, LeaseRequest, ProgressRequest, RegisterData
from rover_kf.data_sharding.dispatcher import ShardDispatcher
from rover_kf.data_sharding.ledger import PoisonedSpan
from rover_kf.data_sharding.progress_rate import ProgressRate
from rover_kf.sidecar.http.app import read, reply
from rover_kf.sidecar.interfaces import EventRecorder

GRACE_SECONDS = 10.0
"""A ledger that begins anew has heard of nobody yet; all are back soon."""


@dataclasses.dataclass(slots=True)
class WorkerRoster:
    """Of one data set; by rank, of which 0 is the chief, which takes none."""

    last_seen: dict[int, float] = dataclasses.field(default_factory=dict)
    """When each was last there."""

    def update(self, ranks: Iterable[int], now: float) -> tuple[list[int], list[int]]:
        """Who is new, and who is gone.

        Args:
            ranks: of those that the ledger knows.
            now: seconds of any steady clock.
        """
        here = set(ranks) - {0}
        came = sorted(here - self.last_seen.keys())
        went = sorted(
            rank
            for rank, at in self.last_seen.items()
            if rank not in here and now - at > GRACE_SECONDS
        )
        self.last_seen |= dict.fromkeys(here, now)
        for rank in went:
            del self.last_seen[rank]
        return came, went


_MAX_EVENTS = 64
"""Of what is set aside of a data set: a story of other things has to have room, too."""


PATHS = (names.PATH_DATA_REGISTER, names.PATH_DATA_LEASE, names.PATH_DATA_PROGRESS)


class DataLeaseService:
    """One a coordinator.

    Args:
        events: where shards are told that were set aside.
    """

    def __init__(self, events: EventRecorder) -> None:
        self._events = events
        self._dispatcher = ShardDispatcher(name=f"{secrets.token_hex(4)}.")
        self._progress_rate = ProgressRate(self._dispatcher)
        self._last_poisoned: dict[str, PoisonedSpan] = {}
        """The newest of each data set."""
        self._event_counts: collections.Counter[str] = collections.Counter()
        self._rosters: dict[str, WorkerRoster] = {}

    def routes(self) -> list[web.RouteDef]:
        """For the Unix socket and the TCP port."""
        return [
            web.post(names.PATH_DATA_REGISTER, self._on_register),
            web.post(names.PATH_DATA_LEASE, self._on_lease),
            web.post(names.PATH_DATA_PROGRESS, self._on_progress),
        ]

    def status(self) -> tuple[DataStatus, ...]:
        """How far the data sets are read."""
        return self._progress_rate.status()

    def tick(self, now: float) -> None:
        """Hand on what has expired, and tell what was set aside."""
        self._dispatcher.tick(now)
        self._progress_rate.tick(now)
        for name, counter in self._dispatcher.counters.items():
            if counter.shared and counter.ledger is not None:
                known = counter.ledger.workers
                ranks = [rank for rank, told in counter.ranks.items() if told.worker in known]
                self._emit_workers(name, ranks, now)
            if counter.ledger is not None and counter.ledger.poisoned:
                self._emit_poisoned(name, counter.ledger.poisoned)

    def _emit_workers(self, name: str, ranks: list[int], now: float) -> None:
        """Who takes records and who does not any more."""
        attendance = self._rosters.setdefault(name, WorkerRoster())
        came, went = attendance.update(ranks, now)
        many = f"{len(attendance.last_seen)} do now"
        for rank in came:
            text = f"data set {name!r}: worker {rank - 1} takes records; {many}"
            self._events.record(names.EVENT_WORKER_JOINED, text)
        for rank in went:
            text = f"data set {name!r}: worker {rank - 1} takes no more records; {many}"
            self._events.record(names.EVENT_WORKER_LEFT, text)

    def _emit_poisoned(self, name: str, poisoned: list[PoisonedSpan]) -> None:
        """Each by an Event, up to a bound; the status has the newest, and counts all."""
        before = self._last_poisoned.get(name)
        known = [at for at, each in enumerate(poisoned, start=1) if each is before]
        self._last_poisoned[name] = poisoned[-1]
        for each in poisoned[known[-1] if known else 0 :]:
            self._event_counts[name] += 1
            if self._event_counts[name] <= _MAX_EVENTS:
                self._events.record(
                    names.EVENT_DATA_SHARD_QUARANTINED, _poisoned_message(name, each), warning=True
                )

    async def _on_register(self, request: web.Request) -> web.Response:
        return reply(self._dispatcher.register(await read(request, RegisterData), time.monotonic()))

    async def _on_lease(self, request: web.Request) -> web.Response:
        return reply(
            self._dispatcher.handle_request(await read(request, LeaseRequest), time.monotonic())
        )

    async def _on_progress(self, request: web.Request) -> web.Response:
        asked = await read(request, ProgressRequest)
        return reply(self._dispatcher.progress(asked.name, asked.round))


def _poisoned_message(name: str, newest: PoisonedSpan) -> str:
    span = newest.span
    if newest.unusable:
        return (
            f"data set {name!r}: record {span.partition!r} {span.begin} could not be used and is "
            f"left out: {newest.reason}"
        )
    place = f"{span.partition!r} " if span.partition else ""
    return (
        f"data set {name!r}: slots {place}{span.begin} to {span.end} could not be read in "
        f"{newest.tries} tries and are left out of this epoch: {newest.reason}"
    )
