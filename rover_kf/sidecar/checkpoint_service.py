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

from aiohttp import web

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import (
    ArenaRequest,
    HeldRequest,
    RestoreReply,
    RestoreRequest,
    Sealed,
    WaitRequest,
)
from rover_kf.api.replica_checks import SealTaken
from rover_kf.api.status import Acknowledged
from rover_kf.checkpoint.arena.slot_record import SLOTS, Seal
from rover_kf.sidecar import tasks
from rover_kf.sidecar.consistency.digest_worker import ReplicaCheck
from rover_kf.sidecar.http.app import read, reply
from rover_kf.sidecar.interfaces import Peers, Story
from rover_kf.sidecar.persist.job_storage import Place
from rover_kf.sidecar.persist.persister import Persister
from rover_kf.sidecar.replication.inventory import KeptReplicas
from rover_kf.sidecar.replication.replicator import Replicas
from rover_kf.sidecar.restore.restorable_steps import HeldSteps
from rover_kf.sidecar.restore.restorer import Restorer
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.sidecar.slots.rank_assignments import Assignment
from rover_kf.sidecar.slots.server import SlotServer
from rover_kf.sidecar.slots.slots import Slots, describe
from rover_kf.sidecar.slots.verifier import Examination
from rover_kf.sidecar.tasks import lasting


def newest(slots: Slots) -> list[Sealed]:
    """Each local rank's newest slot, as of the round in which the rank was last. It blocks.

    Raises:
        OSError: slots cannot be looked at.
    """
    found: list[Sealed] = []
    for local_rank in slots.local_ranks():
        for seal in slots.arena(local_rank).sealed()[:1]:
            now = slots.assignments.get(local_rank)
            if now is not None and now.round != seal.round and _is_of(seal, now):
                found.append(restored(local_rank, seal, now))
            else:
                found.append(Sealed(local_rank, **describe(seal)))
    return found


def _is_of(seal: Seal, now: Assignment) -> bool:
    """Whether a rank goes on from it as it is; a restore that was cut off may have changed none."""
    of_any = seal.replicated or not seal.ranks
    return of_any or (seal.rank, seal.world_size) == (now.rank, now.world_size)


def restored(local_rank: int, seal: Seal, now: Assignment) -> Sealed:
    """A slot that a rank goes on from."""
    known = describe(seal) | dataclasses.asdict(now)
    return Sealed(local_rank, **known, restored=True, made_in=seal.round)


_log = logging.getLogger(__name__)


_MOST_WAITING = 256


"""Seals not yet told to the coordinator; beyond it the oldest are dropped from its account."""


_POLL_SECONDS = 0.05


_TAKEN_UP_A_SECOND = 1 << 30


"""Bytes of a state, by a process that starts from it; at the least."""


_LONGEST_TO_TAKE_UP = 5.0


"""Seconds."""


class Checkpoints:
    """One a sidecar.

    Args:
        settings: of the sidecar.
        peers: the coordinator and other sidecars.
        story: where restores and damages are told.
        place: of what leaves memory; None: nothing does.
    """

    def __init__(
        self, settings: SidecarSettings, peers: Peers, story: Story, place: Place | None
    ) -> None:
        self._settings, self._peers, self._story = settings, peers, story
        self._slots, self._place = Slots(settings), place
        self._persister = Persister(settings, self._slots, place, peers, story) if place else None
        self._replicas = Replicas(settings, self._slots, peers, story)
        self._kept = KeptReplicas(self._slots, story)
        self._check = ReplicaCheck(settings, self._slots, peers)
        self._examination = Examination(self._slots)
        self._server = SlotServer(self._slots)
        stored = place.stored if place else None
        self._restorer = Restorer(
            settings, self._examination, stored, peers, story, server=self._server
        )
        self._held = HeldSteps(settings, self._slots, stored, peers)
        self._allocating = asyncio.Lock()
        self._seals: collections.deque[Sealed] = collections.deque(maxlen=_MOST_WAITING)
        self._news = asyncio.Event()
        self._again = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin the background work; finds what an earlier sidecar left."""
        asyncio.get_running_loop().set_default_executor(tasks.executor())
        self.tell_again()
        self._tasks.append(lasting(self._tell_seals))
        self._tasks.append(lasting(self._replicas.run))
        if self._persister is not None:
            self._tasks.append(lasting(self._persister.run))

    def tell_again(self) -> None:
        """A coordinator has come that may know nothing of what is in this pod's slots."""
        self._again = True
        self._news.set()

    async def stop(self) -> None:
        """End the background work."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks.clear()
        await self._check.stop()
        await self._examination.stop()
        await self._kept.stop()

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
        return [*self._server.routes(), *self._kept.routes()]

    async def _on_arena(self, request: web.Request) -> web.Response:
        wanted = await read(request, ArenaRequest)
        async with self._allocating:
            return reply(await asyncio.to_thread(self._slots.allocate, wanted))

    async def _on_sealed(self, request: web.Request) -> web.Response:
        sealed = await read(request, Sealed)
        assignment = Assignment(sealed.rank, sealed.world_size, sealed.round)
        await asyncio.to_thread(self._slots.assignments.set, sealed.local_rank, assignment)
        self._queue(self._completed(sealed))
        return reply(Acknowledged())

    async def _on_restore(self, request: web.Request) -> web.Response:
        asked = await read(request, RestoreRequest)
        answer = await self._restorer.restore(asked)
        if not asked.look:
            self._tell_restored(asked, answer)
        return reply(answer)

    async def _on_flush(self, _: web.Request) -> web.Response:
        if self._persister is None or self._place is None:
            reason = "no checkpoint path is set: checkpoints stay in memory"
            return reply(Acknowledged(reason=reason))
        with self._place.cap.lifted():
            return reply(await self._persister.flush())

    async def _on_examine(self, _: web.Request) -> web.Response:
        self._examination.begin()
        return reply(Acknowledged())

    async def _on_held(self, request: web.Request) -> web.Response:
        asked = await read(request, HeldRequest)
        return reply(await self._held.find(asked.local_rank))

    async def _on_wait(self, request: web.Request) -> web.Response:
        wanted = await read(request, WaitRequest)
        if wanted.level == "memory":
            return reply(await self._wait_sealed(wanted))
        if wanted.level == "durable" and self._persister is not None:
            waited = await self._persister.wait_durable(wanted.step, wanted.timeout_seconds)
            return reply(waited)
        if wanted.level == "replica":
            waited = await self._peers.ask_coordinator(names.PATH_COMMIT_WAIT, wanted, Acknowledged)
            return reply(waited)
        if wanted.level != "durable":
            raise errors.InputError(
                f"level is {wanted.level!r}; allowed: 'memory', 'replica', 'durable'"
            )
        reason = "no checkpoint path is set: checkpoints stay in memory"
        return reply(Acknowledged(done=False, reason=reason))

    async def _wait_sealed(self, wanted: WaitRequest) -> Acknowledged:
        deadline = time.monotonic() + wanted.timeout_seconds
        while True:
            ranks = await asyncio.to_thread(self._slots.local_ranks)
            newest = [self._slots.arena(rank).sealed()[:1] for rank in ranks]
            if newest and all(seals and seals[0].step >= wanted.step for seals in newest):
                return Acknowledged()
            if time.monotonic() > deadline:
                return Acknowledged(done=False, reason=f"step {wanted.step} is not sealed yet")
            await asyncio.sleep(_POLL_SECONDS)

    async def _tell_seals(self) -> None:
        """Checksum each new seal and tell the coordinator; for ever."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._again:
                self._again = False
                await self._find_seals()
            while self._seals:
                sealed = self._seals.popleft()
                if not self._is_behind(sealed):
                    await self._tell(sealed)

    def _is_behind(self, sealed: Sealed) -> bool:
        """Whether no slot holds it any more, and the coordinator is told of newer ones next.

        After it was away there are hundreds of such, and a new world's requests wait for them.
        """
        newer = sum(waiting.local_rank == sealed.local_rank for waiting in self._seals)
        if newer < len(SLOTS) or sealed.restored:
            return False
        held = self._slots.arena(sealed.local_rank).sealed()
        return bool(held) and all(seal.step > sealed.step for seal in held)

    async def _tell(self, sealed: Sealed) -> None:
        try:
            for seal in self._slots.arena(sealed.local_rank).sealed():
                if (seal.slot, seal.step) == (sealed.slot, sealed.step):
                    found = await asyncio.to_thread(self._slots.checksum, sealed.local_rank, seal)
                    sealed = dataclasses.replace(sealed, checksum=found)
        except (errors.TornSnapshot, OSError) as overwritten:
            _log.info("no checksum of step %d: %s", sealed.step, overwritten)
        try:
            path = names.PATH_COMMIT_SEALED
            taken = await self._peers.ask_coordinator(path, sealed, SealTaken)
        except errors.RoverError as error:
            _log.warning("the coordinator does not know of step %d: %s", sealed.step, error)
            return
        if taken.check:
            self._check.begin(sealed)

    def _completed(self, sealed: Sealed) -> Sealed:
        """With what the trainer does not know."""
        settings = self._settings
        return dataclasses.replace(
            sealed, pod=settings.pod, address=settings.endpoint, node=settings.node
        )

    def _tell_restored(self, asked: RestoreRequest, answer: RestoreReply) -> None:
        """The state that a round goes on from is persisted if it is not durable yet.

        Once the process has taken it up: both at a time keep the job waiting for longer.
        """
        if answer.step is None:
            return
        pause = min(answer.snapshot_bytes / _TAKEN_UP_A_SECOND, _LONGEST_TO_TAKE_UP)
        now = Assignment(asked.rank, asked.world_size, asked.round)
        for seal in self._slots.arena(asked.local_rank).sealed():
            if seal.step == answer.step:
                told = restored(asked.local_rank, seal, now)
                loop = asyncio.get_running_loop()
                loop.call_later(pause, self._queue, self._completed(told))
                return

    def _queue(self, sealed: Sealed) -> None:
        self._seals.append(sealed)
        self._news.set()

    async def _find_seals(self) -> None:
        try:
            found = await asyncio.to_thread(newest, self._slots)
        except OSError as error:
            _log.warning("the coordinator is told of no slot: %s", error)
            return
        self._seals.extend(map(self._completed, found))
