# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The coordinator's half of replicas: who copies whose slots, and who has some.

A pod that has left the world may still be there for a moment, with its slots: after a planned
change of size they are as good as a replica.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Callable, Sequence

from aiohttp import web

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import RestoreStepRequest, SlotInfo
from rover_kf.api.replication import Replicated, ReplicateOrder, ReplicateRequest
from rover_kf.api.states import State
from rover_kf.api.status import Ack
from rover_kf.coordinator.replication.locations import SlotLocations, SlotLocationStore
from rover_kf.coordinator.replication.placement import MIN_KEEPER_RATE, ReplicaPlacement
from rover_kf.sidecar.http.app import read, reply
from rover_kf.sidecar.http.long_poll import LongPoll
from rover_kf.sidecar.http.peer_source import PeerSource
from rover_kf.sidecar.interfaces import PeerClient
from rover_kf.sidecar.settings import SidecarSettings

_log = logging.getLogger(__name__)

_NUMBER_BITS = 62
_PROBE_SECONDS = 2.0


class ReplicationScheduler:
    """One a coordinator.

    Args:
        peers: other sidecars.
        persisting: tells which step is being persisted.
        settings: of the sidecar: whether a pod beside the world keeps a copy.
    """

    def __init__(
        self, peers: PeerClient, persisting: Callable[[], State | None], settings: SidecarSettings
    ) -> None:
        self._peers, self._persisting = peers, persisting
        self._placement = ReplicaPlacement(
            # Members compare numbers for equality: it differs from those of a predecessor.
            number=secrets.randbits(_NUMBER_BITS),
            keeper=settings.keeper_host,
            min_keeper_rate=min(
                MIN_KEEPER_RATE, (settings.policy.checkpoint.replica_bandwidth or math.inf) / 2
            ),
        )
        self._poll = LongPoll()
        self._locations = SlotLocations()
        self._location_store = SlotLocationStore(settings.volume_path, settings.pod_uid)
        self._replicated: State | None = None
        self._single_pod: State | None = None
        """Newest state that is in one pod, of a world that has no other."""

    @property
    def newest(self) -> State | None:
        """Newest state that no loss of one pod takes away."""
        known = (self._placement.replicated, self._replicated)
        return max((state for state in known if state is not None), default=None)

    @property
    def in_progress(self) -> State | None:
        """The state that is being copied."""
        return self._placement.copying(time.monotonic())

    def routes(self) -> list[web.RouteDef]:
        """For the coordinator's TCP port."""
        return [
            web.post(names.PATH_REPLICATE, self._on_replicate),
            web.post(names.PATH_REPLICATED, self._on_replicated),
        ]

    def load_locations(self) -> None:
        """Go on with what an earlier coordinator of this pod knew of slots."""
        for holdings in self._location_store.read():
            self._locations.add(holdings)

    def on_sealed(self, state: State, holdings: Sequence[SlotInfo]) -> None:
        """Every rank has sealed the step, none of them all of it, or it is one pod's alone."""
        self._placement.on_sealed(state, holdings)
        self._store_locations(holdings)
        self._poll.notify()

    def on_restored(self, holdings: Sequence[SlotInfo]) -> None:
        """Every rank goes on from these slots, of which none has all of the state."""
        self._store_locations(holdings)

    def on_replicated(self, state: State) -> None:
        """Every rank has sealed the state, all of them the same, in several pods."""
        self._replicated = state
        self._poll.notify()

    def on_single_pod(self, state: State) -> None:
        """Every rank has sealed the state, all of them in the only pod of the round."""
        self._single_pod = state
        self._poll.notify()

    def restart(self, resumed: State | None) -> None:
        """A new round begins, with that state or with nothing."""
        self._placement.restart()
        self._locations.restart(resumed)
        self._location_store.write(self._locations.states)
        self._replicated = self._single_pod = None

    async def wait(self, state: State, seconds: float) -> Ack:
        """Wait until the state or a newer one has replicas, or can have none."""

        def has_come(newest: State | None) -> bool:
            return newest is not None and newest >= state

        settled = lambda: has_come(self.newest) or has_come(self._single_pod) or None  # noqa: E731 - of one line
        await self._poll.wait(settled, seconds)
        if has_come(self.newest):
            return Ack()
        if has_come(self._single_pod):
            reason = f"no other pod trains that could keep step {state.step}; wait for 'durable'"
            return Ack(done=False, reason=reason)
        newest = self.newest.step if self.newest else None
        reason = f"step {state.step} has no replicas yet; the newest with them is {newest}"
        return Ack(done=False, reason=reason)

    def _store_locations(self, holdings: Sequence[SlotInfo]) -> None:
        self._locations.add(holdings)
        self._location_store.write(self._locations.states)

    async def probe_departed(self, requests: Sequence[RestoreStepRequest]) -> tuple[SlotInfo, ...]:
        """Slots of the newest states in pods that take no part any more but still answer."""
        known = {holding for request in requests for holding in request.slots}
        refused = {state for request in requests for state in request.rejected}
        asked = [h for h in self._locations if h not in known and h.state not in refused]
        found = await asyncio.gather(*(self._is_served(holding) for holding in asked))
        return tuple(h for h, held in zip(asked, found, strict=True) if held)

    async def _is_served(self, holding: SlotInfo) -> bool:
        try:
            head = PeerSource(self._peers, holding).head()
            await asyncio.wait_for(head, _PROBE_SECONDS)
        except (errors.RoverError, asyncio.TimeoutError) as gone:
            _log.info("%s does not serve %s: %s", holding.pod, holding.state, gone)
            return False
        return True

    async def _on_replicate(self, request: web.Request) -> web.Response:
        asked = await read(request, ReplicateRequest)
        if asked.pod == self._placement.keeper and not asked.after:
            self._placement.copy_again()

        def news() -> ReplicateOrder | None:
            if self._placement.keeper in ("", asked.pod):  # nothing waits for one that does not ask
                self._placement.due(self._persisting(), time.monotonic())
            order = self._placement.order(asked.pod)
            return order if order and order.number != asked.after else None

        found = await self._poll.wait(news, asked.timeout_seconds)
        return reply(found or ReplicateOrder(asked.after))

    async def _on_replicated(self, request: web.Request) -> web.Response:
        told = await read(request, Replicated)
        self._placement.on_finished(told.pod, told.number, done=not told.reason)
        self._poll.notify()
        return reply(Ack())
