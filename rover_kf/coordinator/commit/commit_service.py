# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The coordinator's half of checkpoints: what is sealed, named and waited for, the common step.

Its memory is a cache: what is committed stands on storage, what is sealed in the pods' arenas;
a coordinator that was killed and started again is told of them by all pods' sidecars.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
import threading
import time
from collections.abc import Mapping, Sequence

from aiohttp import web

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import (
    PersistAborted,
    PersistOrder,
    PersistOrderRequest,
    PodEnded,
    RankPersisted,
    RestoreStepReply,
    RestoreStepRequest,
    SlotSealed,
    StorageRead,
    WaitRequest,
)
from rover_kf.api.replication import SealAck
from rover_kf.api.states import RoundId, State
from rover_kf.api.status import Ack
from rover_kf.checkpoint import rank_ranges
from rover_kf.checkpoint.commit import Resumed
from rover_kf.checkpoint.resharding import step_selection
from rover_kf.checkpoint.resharding.step_resolution import newest_in_memory
from rover_kf.checkpoint.storage.storage_protocol import StoredCheckpoints
from rover_kf.coordinator.commit import storage_scan
from rover_kf.coordinator.commit.committer import Committer
from rover_kf.coordinator.commit.persist_scheduler import PersistScheduler
from rover_kf.coordinator.commit.sealed_steps import SavingRanks, SealedSteps
from rover_kf.coordinator.commit.storage_scan import StorageScan
from rover_kf.coordinator.commit.undurable import OverduePersist, UndurableState
from rover_kf.coordinator.replica_comparison import ReplicaComparison
from rover_kf.coordinator.replication.peer_copy import PeerCopyClient
from rover_kf.coordinator.replication.scheduler import ReplicationScheduler
from rover_kf.coordinator.restore.barrier import BarrierTimeout, RestoreBarrier
from rover_kf.coordinator.restore.plan_store import RestorePlanStore
from rover_kf.sidecar.http.app import compressed_reply, read, reply
from rover_kf.sidecar.http.long_poll import LongPoll
from rover_kf.sidecar.interfaces import EventRecorder, PeerClient
from rover_kf.sidecar.settings import SidecarSettings

_log = logging.getLogger(__name__)

_NUMBER_BITS = 62

RESOLVE_TIMEOUT = BarrierTimeout(900.0, warn_after=120.0)
"""Of a rank with the others of its round; less than the training process has with its sidecar."""


class CommitService:
    """One a coordinator.

    Args:
        settings: of the sidecar that plays it.
        events: where commits and damages are told.
        peers: other sidecars.
        storage: of the job; None: checkpoints stay in memory.
        resolve_timeout: how long a rank waits for the others.
    """

    def __init__(
        self,
        settings: SidecarSettings,
        events: EventRecorder,
        peers: PeerClient,
        *,
        storage: StoredCheckpoints | None,
        resolve_timeout: BarrierTimeout = RESOLVE_TIMEOUT,
    ) -> None:
        self._settings, self._events, self._storage = settings, events, storage
        policy = settings.policy.checkpoint
        self._sealed_steps, self._saving_ranks = SealedSteps(), SavingRanks()
        self._scheduler = PersistScheduler(
            policy.persist_seconds,
            # Members compare numbers for equality: it differs from those of a predecessor.
            secrets.randbits(_NUMBER_BITS),
            policy.persist_steps,
            keep_every=policy.keep_every or 0,
        )
        self._replication = ReplicationScheduler(peers, lambda: self._scheduler.current, settings)
        self._peer_copy = PeerCopyClient(settings, peers) if settings.keeper_host else None
        self._comparison = ReplicaComparison(policy.verify_replicas_every, events)
        kept = RestorePlanStore(settings.volume_path, settings.pod_uid)
        self._barrier = RestoreBarrier(
            self._select_restore_step, self._begin_round, kept, self._warn, resolve_timeout
        )
        self._poll, self._answering = LongPoll(), asyncio.Lock()
        self._committer = Committer(settings, events, storage, self._on_committed)
        self._undurable = UndurableState(self._sealed_steps, self._committer)
        self._overdue = OverduePersist(settings.policy.checkpoint.persist_seconds)

    @property
    def sealed_step(self) -> int | None:
        """Newest step in memory that the round could restore."""
        return self._sealed_steps.newest.step if self._sealed_steps.newest else None

    @property
    def durable_step(self) -> int | None:
        """Newest committed step on storage."""
        return self._committer.committed.state.step if self._committer.committed else None

    @property
    def rejection(self) -> str:
        """Why this job may not use its storage; empty: it may, as far as is known."""
        return self._committer.rejection

    @property
    def storage_rate(self) -> float:
        """Bytes a second that storage took of the slowest pod lately; 0: not measured."""
        return self._committer.rate

    @property
    def restored_bytes(self) -> int:
        """Bytes that the ranks of the round have read of what they restore from storage."""
        return self._barrier.reads.read_bytes

    @property
    def sealed_steps(self) -> SealedSteps:
        """What ranks have told of their slots; to be read only."""
        return self._sealed_steps

    @property
    def undurable(self) -> UndurableState:
        """What can never become durable."""
        return self._undurable

    async def scan_storage(self) -> StorageScan:
        """What storage holds. Call it once, before ``begin``.

        A storage that cannot be read in time is reported as a Warning; memory goes on.
        """
        found = StorageScan()
        if self._storage is not None:
            found = await storage_scan.scan(self._storage)
        await self._barrier.load_plan()
        self._committer.resume_from(self._barrier.resumed_from)
        self._replication.load_locations()
        if found.error:
            self._warn(found.error)
        if self._storage is not None:
            self._committer.on_scan(found)
        return found

    async def claim(self) -> None:
        """Claim the job's folder. A storage that does not answer is asked again at a commit."""
        if self._committer.has_scanned:
            try:
                await self._committer.claim()
            except errors.NotOwner as error:
                _log.warning("%s", error)  # it ends the job, which reports it
            except errors.StorageError as error:
                self._warn(str(error))

    def set_generation(self, generation: int) -> None:
        """This coordinator has that generation from now on."""
        self._committer.generation = self._barrier.generation = generation

    def _on_committed(self, state: State) -> None:
        self._scheduler.on_committed(state)
        self._overdue.on_committed()
        self._poll.notify()

    def routes(self) -> list[web.RouteDef]:
        """For the coordinator's TCP port."""
        return [
            web.post(names.PATH_COMMIT_SEALED, self._on_sealed),
            web.post(names.PATH_COMMIT_DURABLE, self._on_durable),
            web.post(names.PATH_COMMIT_RESOLVE, self._on_resolve),
            web.post(names.PATH_COMMIT_READ, self._on_read),
            web.post(names.PATH_COMMIT_WAIT, self._on_wait),
            web.post(names.PATH_COMMIT_NAMED, self._on_named),
            web.post(names.PATH_COMMIT_GIVEN_UP, self._on_given_up),
            web.post(names.PATH_COMMIT_LEFT, self._on_left),
            *self._replication.routes(),
            *self._comparison.routes(),
        ]

    async def _on_sealed(self, request: web.Request) -> web.Response:
        sealed = await read(request, SlotSealed)
        if self._sealed_steps.add(sealed):
            key = sealed.stored_as
            is_safe = sealed.is_restored and self._committer.is_durable(key)
            if not (is_safe or self.rejection or self._committer.is_committed(key)):
                self._scheduler.on_sealed(key)
            holdings = self._sealed_steps.holdings(key)
            # A rank whose slot was overwritten before it was read would be left without a copy.
            alike = self._sealed_steps.is_replicated(key)
            whole = alike or len(holdings) == sealed.world_size
            # A restored slot keeps the round that it was sealed in, its replica would have another.
            if (self._peer_copy or not alike) and whole and not sealed.is_restored:
                self._replication.on_sealed(key, holdings)
            elif whole and not alike:
                self._replication.on_restored(holdings)
            elif alike and self._sealed_steps.pod_count(key) > 1:
                self._replication.on_replicated(key)
            if self._peer_copy is None and self._sealed_steps.pod_count(key) == 1:
                self._replication.on_single_pod(key)
            self._poll.notify()
        if idle := self._saving_ranks.ranks_not_saving(sealed, time.monotonic()):
            self._warn(
                f"rank {sealed.rank} saves, and of {sealed.world_size} ranks "
                f"{rank_ranges.format_ranks(idle)} never: only what every rank saves comes "
                "to storage; "
                "call save, or step, on every rank"
            )
        return reply(SealAck(send_digest=self._comparison.is_due(sealed)))

    async def _on_durable(self, request: web.Request) -> web.Response:
        durable = await read(request, RankPersisted)
        accepted = await self._committer.on_rank_durable(durable)
        if accepted.done:
            self._scheduler.on_rank_persisted(durable.state)
            self._poll.notify()
        return reply(accepted)

    async def _on_resolve(self, request: web.Request) -> web.Response:
        found = await self._barrier.wait(await read(request, RestoreStepRequest))
        if len(found.slots) <= 1:
            return reply(found)
        # A world of another size: all ranks are answered at once, each with the slots of all.
        async with self._answering:
            return await asyncio.to_thread(compressed_reply, request, found)

    async def _on_read(self, request: web.Request) -> web.Response:
        return reply(await self._barrier.on_read(await read(request, StorageRead)))

    async def _on_named(self, request: web.Request) -> web.Response:
        asked = await read(request, PersistOrderRequest)

        def news() -> PersistOrder | None:
            copying = self._replication.in_progress
            return self._scheduler.next_order(asked, time.monotonic(), copying=copying)

        found = await self._poll.wait(news, asked.timeout_seconds)
        return reply(found or PersistOrder(asked.after, None, in_progress=asked.pins_slots))

    async def _on_given_up(self, request: web.Request) -> web.Response:
        aborted = await read(request, PersistAborted)
        _log.info("rank %d gives up %s: %s", aborted.rank, aborted.state, aborted.reason)
        now = time.monotonic()
        self._scheduler.aborted(aborted.state, now=now, pause=aborted.pause_seconds)
        if self._committer.has_waiters and not aborted.pause_seconds:
            self._scheduler.expedite()  # a newer state has replaced it, and serves waiters as well
        self._poll.notify()
        if aborted.pause_seconds:
            await self._committer.on_abort(aborted)
        elif overdue := self._overdue.on_aborted(aborted, now):
            self._warn(overdue)
        return reply(Ack())

    async def _on_left(self, request: web.Request) -> web.Response:
        self._undurable.pod_ended(await read(request, PodEnded))
        return reply(Ack())

    async def _on_wait(self, request: web.Request) -> web.Response:
        waiting = await read(request, WaitRequest)
        state, seconds = waiting.state, waiting.timeout_seconds
        if waiting.level == "replica":
            return reply(await self._replication.wait(state, seconds))
        done = self._committer.is_durable(state)
        if not done:
            self._committer.rescan()
        if not done and seconds > 0:  # a request without a time-out is a question only
            self._scheduler.expedite(state)
            with self._committer.waiting():
                is_durable = self._committer.is_durable
                done = bool(await self._poll.wait(lambda: is_durable(state) or None, seconds))
        return reply(Ack() if done else self._undurable_ack(state))

    def _undurable_ack(self, state: State) -> Ack:
        if never := self._undurable.reason(state):
            return Ack(done=False, reason=never, permanent=True)
        why = f"step {state.step} is not durable yet; the newest is {self.durable_step}"
        if lacking := self._sealed_steps.missing_ranks(state):
            why += (
                f"; ranks {rank_ranges.format_ranks(lacking)} have not saved it: every rank has to"
            )
        if unlike := self._committer.mismatch:
            why += f"; {unlike}"
        if rejected := self._committer.rejection:
            return Ack(done=False, reason=rejected, permanent=True)
        return Ack(done=False, reason=why)

    # -- the common step ---------------------------------------------------------------------

    def _begin_round(self, current: RoundId) -> None:
        self._committer.begin_round(current)

    async def _select_restore_step(
        self, current: RoundId, requests: Sequence[RestoreStepRequest]
    ) -> Mapping[int, RestoreStepReply]:
        self._committer.rescan()
        if self.rejection:
            raise errors.NotOwner(self.rejection)
        absent = await self._replication.probe_departed(requests)
        if self._peer_copy is not None and newest_in_memory(requests, absent) is None:
            refused = {state for request in requests for state in request.rejected}
            kept = await self._peer_copy.fetch_holdings()
            absent += tuple(holding for holding in kept if holding.state not in refused)
        committed = self._committer.committed
        over = threading.Event()
        select = functools.partial(
            step_selection.select_step,
            scanned=self._committer.has_scanned,
            committed=committed.origin if committed else None,
            damaged=dict(self._barrier.damages),
            pause=over.wait,
        )
        try:
            replies = await asyncio.to_thread(select, self._storage, requests, absent, self._warn)
        except errors.CheckpointError:
            self._barrier.damages.clear()  # a person may bring the files back: they are read again
            raise
        finally:
            over.set()  # the round, or the sidecar: nothing is tried again
        self._restart(current, replies[0].state)
        return replies

    def _restart(self, current: RoundId, origin: State | None) -> None:
        """A round begins with that state."""
        state = origin.restored_in(current) if origin else None
        self._sealed_steps.restart(state)
        self._scheduler.restart()
        # What the round goes on from may be in one memory only: durable before the pace allows it.
        self._scheduler.expedite()
        self._replication.restart(origin)
        self._comparison.restart(origin)
        self._poll.notify()
        self._committer.resume_from(Resumed(current, origin) if origin else None)

    def _warn(self, message: str) -> None:
        self._events.record(names.EVENT_CHECKPOINT_WARNING, message, warning=True)
