# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A pod's checkpoints: what the sidecar does for its own trainers, launcher, and other sidecars.

daemon.py makes one, adds its routes to the Unix socket and to the TCP port, starts and stops it.
Copies, checksums and disk run in threads; the event loop answers meanwhile. Everything that must
outlive the sidecar is in the arena: one that was killed goes on from there.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable

from aiohttp import web

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import (
    ArenaRequest,
    RestorableStepsRequest,
    RestoreReply,
    RestoreRequest,
    SlotSealed,
    WaitRequest,
)
from rover_kf.api.replication import SealAck
from rover_kf.api.status import Ack
from rover_kf.checkpoint.arena.slot_record import SLOTS, Seal
from rover_kf.sidecar import tasks
from rover_kf.sidecar.consistency.digest_worker import ReplicaDigester
from rover_kf.sidecar.http.app import read, reply
from rover_kf.sidecar.interfaces import EventRecorder, PeerClient
from rover_kf.sidecar.persist.job_storage import JobStorage
from rover_kf.sidecar.persist.persister import Persister
from rover_kf.sidecar.replication.inventory import ReplicaInventory
from rover_kf.sidecar.replication.replicator import Replicator
from rover_kf.sidecar.restore.restorable_steps import RestorableStepFinder
from rover_kf.sidecar.restore.restorer import Restorer
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.sidecar.slots.rank_assignments import RankAssignment
from rover_kf.sidecar.slots.server import SlotServer
from rover_kf.sidecar.slots.slots import PodSlots, describe
from rover_kf.sidecar.slots.verifier import SlotVerifier
from rover_kf.sidecar.tasks import run_forever


def newest_sealed(slots: PodSlots) -> list[SlotSealed]:
    """Each local rank's newest slot, as of the round in which the rank was last. It blocks.

    Raises:
        OSError: slots cannot be looked at.
    """
    found: list[SlotSealed] = []
    for local_rank in slots.local_ranks():
        for seal in slots.arena(local_rank).sealed()[:1]:
            now = slots.assignments.get(local_rank)
            if now is not None and now.round != seal.state.round and _is_restorable_as(seal, now):
                found.append(restored_report(local_rank, seal, now))
            else:
                found.append(SlotSealed(local_rank, **describe(seal), round=seal.state.round))
    return found


def _is_restorable_as(seal: Seal, now: RankAssignment) -> bool:
    """Whether a rank goes on from it as it is; a restore that was cut off may have changed none."""
    return seal.replicated or (seal.rank, seal.world_size) == (now.rank, now.world_size)


def restored_report(local_rank: int, seal: Seal, now: RankAssignment) -> SlotSealed:
    """A slot that a rank goes on from."""
    known = {"rank": now.rank, "world_size": now.world_size, "round": now.round}
    return SlotSealed(local_rank, **(describe(seal) | known))


_log = logging.getLogger(__name__)


_MAX_WAITING = 256
"""Seals not yet told to the coordinator; beyond it the oldest are dropped from its account."""


_POLL_SECONDS = 0.05


_MIN_LOAD_RATE = 1 << 30
"""Bytes of a state, by a process that starts from it; at the least."""


_MAX_LOAD_SECONDS = 5.0
"""Seconds."""


INTERIM_RESPONSE = b"HTTP/1.1 100 Continue\r\n\r\n"
_INTERIM_SECONDS = 300.0
"""Between two interim responses; a process waits for the next byte for half an hour."""


class InterimResponses:
    """HTTP's interim responses to a process that waits for a restore: ranks still read.

    Args:
        request: of the process.
        clock: monotonic seconds.
    """

    def __init__(self, request: web.Request, clock: Callable[[], float] = time.monotonic) -> None:
        self._transport, self._clock, self._sent_at = request.transport, clock, clock()

    def send(self) -> None:
        """Send one, unless the last one is recent."""
        now = self._clock()
        if self._transport is not None and now - self._sent_at >= _INTERIM_SECONDS:
            self._sent_at = now
            self._transport.write(INTERIM_RESPONSE)


class CheckpointService:
    """One a sidecar.

    Args:
        settings: of the sidecar.
        peers: the coordinator and other sidecars.
        events: where restores and damages are told.
        storage: of what leaves memory; None: nothing does.
    """

    def __init__(
        self,
        settings: SidecarSettings,
        peers: PeerClient,
        events: EventRecorder,
        storage: JobStorage | None,
    ) -> None:
        self._settings, self._peers, self._events = settings, peers, events
        self._slots, self._storage = PodSlots(settings), storage
        self._persister = (
            Persister(settings, self._slots, storage, peers, events) if storage else None
        )
        self._replicator = Replicator(settings, self._slots, peers, events)
        self._inventory = ReplicaInventory(self._slots, events)
        self._digester = ReplicaDigester(settings, self._slots, peers)
        self._verifier = SlotVerifier(self._slots)
        self._server = SlotServer(self._slots)
        stored = storage.checkpoints if storage else None
        self._restorer = Restorer(
            settings, self._verifier, stored, peers, events, server=self._server
        )
        self._restorable_steps = RestorableStepFinder(settings, self._slots, stored, peers)
        self._allocating = asyncio.Lock()
        self._seals: collections.deque[SlotSealed] = collections.deque(maxlen=_MAX_WAITING)
        self._news = asyncio.Event()
        self._report_all = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin the background work; finds what an earlier sidecar left."""
        asyncio.get_running_loop().set_default_executor(tasks.low_priority_executor())
        self.report_all_slots()
        self._tasks.append(run_forever(self._report_seals))
        self._tasks.append(run_forever(self._replicator.run))
        if self._persister is not None:
            self._tasks.append(run_forever(self._persister.run))

    def report_all_slots(self) -> None:
        """A coordinator has come that may know nothing of what is in this pod's slots."""
        self._report_all = True
        self._news.set()

    async def stop(self) -> None:
        """End the background work."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks.clear()
        await self._digester.stop()
        await self._verifier.stop()
        await self._inventory.stop()

    def local_routes(self) -> list[web.RouteDef]:
        """For the Unix socket."""
        return [
            web.post(names.PATH_ARENA, self._on_arena),
            web.post(names.PATH_SEALED, self._on_sealed),
            web.post(names.PATH_RESTORE, self._on_restore),
            web.post(names.PATH_WAIT, self._on_wait),
            web.post(names.PATH_FLUSH, self._on_flush),
            web.post(names.PATH_EXAMINE, self._on_examine),
            web.post(names.PATH_HELD, self._on_held),
        ]

    def peer_routes(self) -> list[web.RouteDef]:
        """For the TCP port."""
        return [*self._server.routes(), *self._inventory.routes()]

    async def _on_arena(self, request: web.Request) -> web.Response:
        wanted = await read(request, ArenaRequest)
        async with self._allocating:
            return reply(await asyncio.to_thread(self._slots.allocate, wanted))

    async def _on_sealed(self, request: web.Request) -> web.Response:
        sealed = await read(request, SlotSealed)
        assignment = RankAssignment(sealed.rank, sealed.world_size, sealed.round)
        await asyncio.to_thread(self._slots.assignments.set, sealed.local_rank, assignment)
        self._queue(self._with_pod_identity(sealed))
        return reply(Ack())

    async def _on_restore(self, request: web.Request) -> web.Response:
        asked = await read(request, RestoreRequest)
        alive = InterimResponses(request)
        answer = await self._restorer.restore(asked, alive.send)
        if not asked.plain_data_only:
            self._report_restored(asked, answer)
        return reply(answer)

    async def _on_flush(self, _: web.Request) -> web.Response:
        if self._persister is None or self._storage is None:
            reason = "no checkpoint path is set: checkpoints stay in memory"
            return reply(Ack(reason=reason))
        with self._storage.limiter.unlimited():
            return reply(await self._persister.flush())

    async def _on_examine(self, _: web.Request) -> web.Response:
        self._verifier.begin()
        return reply(Ack())

    async def _on_held(self, request: web.Request) -> web.Response:
        asked = await read(request, RestorableStepsRequest)
        return reply(await self._restorable_steps.find_steps(asked.local_rank))

    async def _on_wait(self, request: web.Request) -> web.Response:
        wanted = await read(request, WaitRequest)
        if wanted.level == "memory":
            return reply(await self._wait_sealed(wanted))
        if wanted.level == "durable" and self._persister is not None:
            waited = await self._persister.wait_durable(wanted.state, wanted.timeout_seconds)
            return reply(waited)
        if wanted.level == "replica":
            waited = await self._peers.call_coordinator(names.PATH_COMMIT_WAIT, wanted, Ack)
            return reply(waited)
        if wanted.level != "durable":
            raise errors.InputError(
                f"level is {wanted.level!r}; allowed: 'memory', 'replica', 'durable'"
            )
        reason = "no checkpoint path is set: checkpoints stay in memory"
        return reply(Ack(done=False, reason=reason))

    async def _wait_sealed(self, request: WaitRequest) -> Ack:
        deadline = time.monotonic() + request.timeout_seconds
        while True:
            ranks = await asyncio.to_thread(self._slots.local_ranks)
            newest = [self._slots.newest_stored_as(rank) for rank in ranks]
            if newest and all(state is not None and state >= request.state for state in newest):
                return Ack()
            if time.monotonic() > deadline:
                return Ack(done=False, reason=f"step {request.state.step} is not sealed yet")
            await asyncio.sleep(_POLL_SECONDS)

    async def _report_seals(self) -> None:
        """Checksum each new seal and tell the coordinator; for ever."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._report_all:
                self._report_all = False
                await self._find_seals()
            while self._seals:
                sealed = self._seals.popleft()
                if not self._is_superseded(sealed):
                    await self._report_seal(sealed)

    def _is_superseded(self, sealed: SlotSealed) -> bool:
        """Whether no slot holds it any more, and the coordinator is told of newer ones next.

        After it was away there are hundreds of such, and a new world's requests wait for them.
        """
        newer = sum(waiting.local_rank == sealed.local_rank for waiting in self._seals)
        if newer < len(SLOTS) or sealed.is_restored:
            return False
        held = self._slots.arena(sealed.local_rank).sealed()
        return bool(held) and all(seal.state > sealed.state for seal in held)

    async def _report_seal(self, sealed: SlotSealed) -> None:
        try:
            for seal in self._slots.arena(sealed.local_rank).sealed():
                if (seal.slot, seal.state) == (sealed.slot, sealed.state):
                    found = await asyncio.to_thread(self._slots.checksum, sealed.local_rank, seal)
                    sealed = dataclasses.replace(sealed, checksum=found)
        except (errors.CorruptSnapshot, OSError) as overwritten:
            _log.info("no checksum of %s: %s", sealed.state, overwritten)
        try:
            path = names.PATH_COMMIT_SEALED
            taken = await self._peers.call_coordinator(path, sealed, SealAck)
        except errors.RoverError as error:
            _log.warning("the coordinator does not know of %s: %s", sealed.state, error)
            return
        if taken.send_digest:
            self._digester.begin(sealed)

    def _with_pod_identity(self, sealed: SlotSealed) -> SlotSealed:
        """With what the trainer does not know."""
        settings = self._settings
        return dataclasses.replace(
            sealed, pod=settings.pod, address=settings.endpoint, node=settings.node
        )

    def _report_restored(self, request: RestoreRequest, answer: RestoreReply) -> None:
        """The state that a round goes on from is persisted if it is not durable yet.

        Once the process has taken it up: both at a time keep the job waiting for longer.
        """
        if answer.state is None:
            return
        pause = min(answer.snapshot_bytes / _MIN_LOAD_RATE, _MAX_LOAD_SECONDS)
        now = RankAssignment(request.rank, request.world_size, answer.round)
        for seal in self._slots.arena(request.local_rank).sealed():
            if seal.state == answer.state:
                told = restored_report(request.local_rank, seal, now)
                loop = asyncio.get_running_loop()
                loop.call_later(pause, self._queue, self._with_pod_identity(told))
                return

    def _queue(self, sealed: SlotSealed) -> None:
        self._seals.append(sealed)
        self._news.set()

    async def _find_seals(self) -> None:
        try:
            found = await asyncio.to_thread(newest_sealed, self._slots)
        except OSError as error:
            _log.warning("the coordinator is told of no slot: %s", error)
            return
        self._seals.extend(map(self._with_pod_identity, found))
