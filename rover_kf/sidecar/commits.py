# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The coordinator's half of checkpoints: the common step of a round, and the commit of a step.

Its memory is a cache: what is committed stands on storage, what is sealed in the pods' arenas;
a coordinator that was killed and started again is told of them by all pods' sidecars.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
import time
from collections.abc import Mapping, Sequence

from aiohttp import web

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import (
    Durable,
    GivenUp,
    Named,
    NamedRequest,
    ResolveReply,
    ResolveRequest,
    Sealed,
    WaitRequest,
)
from rover_kf.api.replica_checks import SealTaken
from rover_kf.api.status import Acknowledged
from rover_kf.checkpoint import commit
from rover_kf.checkpoint.manifest import Manifest
from rover_kf.checkpoint.resolve import newest_in_memory
from rover_kf.checkpoint.storage import StoredCheckpoints
from rover_kf.sidecar import first_look, newest_stored
from rover_kf.sidecar.common_step import CommonStep, Patience
from rover_kf.sidecar.first_look import FirstLook
from rover_kf.sidecar.keeper import Keeper
from rover_kf.sidecar.long_poll import LongPoll
from rover_kf.sidecar.naming import Naming
from rover_kf.sidecar.plan_file import PlanFile
from rover_kf.sidecar.replica_verdicts import ReplicaVerdicts
from rover_kf.sidecar.replication import Replication
from rover_kf.sidecar.savers import Savers
from rover_kf.sidecar.seal_account import SealAccount
from rover_kf.sidecar.seams import Peers, Story
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.sidecar.storage_rate import StorageRate
from rover_kf.sidecar.unmeasured import Unmeasured
from rover_kf.sidecar.web import read, reply

_log = logging.getLogger(__name__)

_TELL_SECONDS = 10.0
RESOLVE = Patience(900.0, warned_after=120.0)
"""Of a rank with the others of its round; less than the training process has with its sidecar."""


class Commits:
    """One a coordinator.

    Args:
        settings: of the sidecar that plays it.
        story: where commits and damages are told.
        peers: other sidecars.
        storage: of the job; None: checkpoints stay in memory.
        resolve: how long a rank waits for the others.
    """

    def __init__(
        self,
        settings: SidecarSettings,
        story: Story,
        peers: Peers,
        *,
        storage: StoredCheckpoints | None,
        resolve: Patience = RESOLVE,
    ) -> None:
        self._settings, self._story, self._storage = settings, story, storage
        self._ledger = commit.Ledger()
        self._has_looked = False
        """Whether the ledger knows what storage had when this coordinator began."""
        self._looking: asyncio.Task[None] | None = None
        self._seals, self._savers = SealAccount(), Savers()
        self._rate = StorageRate()
        self._unmeasured = Unmeasured(settings.checkpoint_spare.best, settings.checkpoint_keep)
        self._naming = Naming(
            settings.persist_seconds,
            time.time_ns(),
            settings.persist_steps,
            keep_every=settings.checkpoint_spare.every,
        )
        self._replication = Replication(peers, lambda: self._naming.named, settings)
        self._keeper = Keeper(settings, peers) if settings.keeper_host else None
        self._verdicts = ReplicaVerdicts(settings.checkpoint_check_every, story)
        kept = PlanFile(settings.home, settings.pod_uid)
        self._common = CommonStep(self._choose, self._begin_round, kept, self._warn, resolve)
        self._poll = LongPoll()
        self._writing = asyncio.Lock()
        self._waiters = 0
        self._told_at = float("-inf")

    @property
    def sealed_step(self) -> int | None:
        """Newest step in memory that the round could restore."""
        return self._seals.step

    @property
    def durable_step(self) -> int | None:
        """Newest committed step on storage."""
        return self._ledger.committed[1] if self._ledger.committed else None

    @property
    def storage_rate(self) -> float:
        """Bytes a second that storage took of the slowest pod lately; 0: not measured."""
        return self._rate.value

    @property
    def seals(self) -> SealAccount:
        """What ranks have told of their slots; to be read only."""
        return self._seals

    async def first_generation(self) -> int:
        """Number of the first round: above everything that is on storage. Call it once.

        A storage that cannot be read in time is told as a Warning; memory goes on.
        """
        found = await first_look.look(self._storage) if self._storage is not None else None
        await self._common.recall()
        self._replication.recall()
        if found is None:
            return 1
        if found.wrong:
            self._warn(found.wrong)
        self._take_look(found)
        return found.generation

    def _take_look(self, found: FirstLook) -> None:
        """Take what storage has for committed, unless the round went back behind it."""
        self._has_looked = not found.wrong
        committed, began = found.committed, self._common.began
        if committed is None or commit.is_committed(self._ledger, committed):
            return
        # What the round itself has committed is newer than what it began with.
        if began is None or committed[0] >= began[0] or committed[1] <= began[1]:
            self._ledger = dataclasses.replace(self._ledger, committed=committed)
            self._naming.committed(committed)

    def _look_again(self) -> None:
        """Storage could not be read at first: what is committed there is not known."""
        looks = self._looking is not None and not self._looking.done()
        if self._storage is not None and not self._has_looked and not looks:
            self._looking = asyncio.create_task(self._looked_again(self._storage))

    async def _looked_again(self, storage: StoredCheckpoints) -> None:
        self._take_look(await first_look.look(storage))
        self._poll.notify()

    def routes(self) -> list[web.RouteDef]:
        """For the coordinator's TCP port."""
        return [
            web.post(names.PATH_COMMIT_SEALED, self._on_sealed),
            web.post(names.PATH_COMMIT_DURABLE, self._on_durable),
            web.post(names.PATH_COMMIT_RESOLVE, self._on_resolve),
            web.post(names.PATH_COMMIT_WAIT, self._on_wait),
            web.post(names.PATH_COMMIT_NAMED, self._on_named),
            web.post(names.PATH_COMMIT_GIVEN_UP, self._on_given_up),
            *self._replication.routes(),
            *self._verdicts.routes(),
        ]

    async def _on_sealed(self, request: web.Request) -> web.Response:
        sealed = await read(request, Sealed)
        if self._seals.take(sealed):
            key = (sealed.round, sealed.step)
            is_safe = sealed.restored and self._is_durable(sealed.step)
            if not is_safe and not commit.is_committed(self._ledger, key):
                self._naming.sealed(key)
            holdings = self._seals.holdings(key)
            # A rank whose slot was overwritten before it was read would be left without a copy.
            whole = sealed.replicated or len(holdings) == sealed.world_size
            # A restored slot keeps the round that it was sealed in, its replica would have another.
            if (self._keeper or not sealed.replicated) and whole and not sealed.restored:
                self._replication.sealed(key, holdings)
            elif whole and not sealed.replicated:
                self._replication.restored(holdings)
            elif sealed.replicated and self._seals.pods(key) > 1:
                self._replication.held_by_all(sealed.step)
            if self._keeper is None and self._seals.pods(key) == 1:
                self._replication.alone(sealed.step)
            self._poll.notify()
        if idle := self._savers.idle(sealed, time.monotonic()):
            self._warn(
                f"rank {sealed.rank} saves, and of {sealed.world_size} ranks {list(idle)} never: "
                "only what every rank saves comes to storage; call save, or step, on every rank"
            )
        return reply(SealTaken(check=self._verdicts.is_due(sealed)))

    async def _on_durable(self, request: web.Request) -> web.Response:
        durable = await read(request, Durable)
        return reply(await self._take_durable(durable))

    async def _on_resolve(self, request: web.Request) -> web.Response:
        return reply(await self._common.ask(await read(request, ResolveRequest)))

    async def _on_named(self, request: web.Request) -> web.Response:
        asked = await read(request, NamedRequest)

        def news() -> Named | None:
            copying = self._replication.under_way
            return self._naming.news(asked, time.monotonic(), copying=copying)

        found = await self._poll.answer(news, asked.timeout_seconds)
        return reply(found or Named(asked.after, None, under_way=asked.holding))

    async def _on_given_up(self, request: web.Request) -> web.Response:
        told = await read(request, GivenUp)
        _log.info("rank %d gives up step %d: %s", told.rank, told.step, told.reason)
        key, now = (told.round, told.step), time.monotonic()
        self._naming.given_up(key, now=now, pause=told.pause_seconds)
        if self._waiters and not told.pause_seconds:
            self._naming.hurry()  # a newer step has replaced it, and is as good to who waits
        self._poll.notify()
        if told.pause_seconds and self._storage is not None:
            await self._make_room(told, self._storage)
        return reply(Acknowledged())

    async def _on_wait(self, request: web.Request) -> web.Response:
        wanted = await read(request, WaitRequest)
        if wanted.level == "replica":
            return reply(await self._replication.wait(wanted.step, wanted.timeout_seconds))
        done = self._is_durable(wanted.step)
        if not done:
            self._look_again()
        if not done and wanted.timeout_seconds > 0:  # who only asks is not waited for
            self._naming.hurry(wanted.step)
            self._waiters += 1
            try:
                look = lambda: self._is_durable(wanted.step) or None  # noqa: E731 - of one line
                done = bool(await self._poll.answer(look, wanted.timeout_seconds))
            finally:
                self._waiters -= 1
        if done:
            return reply(Acknowledged())
        why = f"step {wanted.step} is not durable yet; the newest is {self.durable_step}"
        if lacking := self._seals.lacking(wanted.step):
            why += f"; ranks {list(lacking)} have not saved it: every rank has to"
        return reply(Acknowledged(done=False, reason=why))

    def _is_durable(self, step: int) -> bool:
        return self.durable_step is not None and self.durable_step >= step

    # -- commit ------------------------------------------------------------------------------

    async def _take_durable(self, durable: Durable) -> Acknowledged:
        if self._storage is None:
            return Acknowledged(done=False, reason="this job has no checkpoint path")
        async with self._writing:
            verdict = commit.report(self._ledger, durable, now=time.time())
            self._ledger = verdict.ledger
            if verdict.accepted:
                self._rate.heard(durable)
            if verdict.manifest is not None:
                await self._commit(verdict.manifest, durable.persist_seconds, self._storage)
            return Acknowledged(done=verdict.accepted, reason=verdict.reason)

    async def _commit(
        self, manifest: Manifest, persist_seconds: float, storage: StoredCheckpoints
    ) -> None:
        folder = await asyncio.to_thread(storage.write_manifest, manifest)
        self._ledger = commit.commit(self._ledger, manifest)
        self._naming.committed((manifest.generation, manifest.step))
        size = sum(file.length for file in manifest.files)
        self._tell(
            f"step {manifest.step} is durable in {folder.name}: {len(manifest.files)} "
            f"file(s), {size} bytes, written in {persist_seconds:.2f} s",
            now=time.monotonic(),
        )
        if wrong := self._unmeasured.objection(manifest.step, manifest.metrics):
            self._warn(wrong)
        self._poll.notify()
        try:
            await self._collect(storage, manifest.generation)
        except errors.StorageFailed as error:
            self._warn(f"old checkpoints stay: {error}")

    async def _make_room(self, told: GivenUp, storage: StoredCheckpoints) -> None:
        """Storage has refused a step: it may be full of what ranks wrote of older ones."""
        async with self._writing:
            self._ledger = commit.give_up(self._ledger, told)
            if commit.have_all_come(self._ledger, told):
                try:
                    await self._collect(storage, told.round, below=told.step)
                except errors.StorageFailed as error:
                    _log.info("no room is made: %s", error)

    async def _collect(
        self, storage: StoredCheckpoints, generation: int, *, below: int = 0
    ) -> None:
        keep, spare = self._settings.checkpoint_keep, self._settings.checkpoint_spare
        await asyncio.to_thread(
            storage.collect, keep, generation=generation, spare=spare, below=below
        )

    def _tell(self, message: str, *, now: float) -> None:
        # A small state is durable many times a second: the story needs no more than now and then,
        # and the step that somebody waits for.
        if self._waiters or now - self._told_at >= _TELL_SECONDS:
            self._told_at = now
            self._story.record(names.EVENT_DURABLE, message)

    # -- the common step ---------------------------------------------------------------------

    def _begin_round(self, number: int) -> None:
        self._ledger = commit.begin_round(self._ledger, number)

    async def _choose(self, requests: Sequence[ResolveRequest]) -> Mapping[int, ResolveReply]:
        absent = await self._replication.absent(requests)
        if self._keeper is not None and not newest_in_memory(requests, absent):
            refused = {step for request in requests for step in request.refused}
            kept = await self._keeper.kept()
            absent += tuple(holding for holding in kept if holding.step not in refused)
        known = (self.durable_step or 0) if self._has_looked else None
        over = threading.Event()
        asked = (self._storage, requests, absent, self._warn, known)
        try:
            replies = await asyncio.to_thread(newest_stored.choose, *asked, pause=over.wait)
        finally:
            over.set()  # the round, or the sidecar: nothing is tried again
        step = replies[0].step
        self._seals.restart(step)
        self._naming.restart()
        # What the round goes on from may be in one memory only: durable before the pace allows it.
        self._naming.hurry()
        self._replication.restart(step)
        self._verdicts.restart(step)
        self._poll.notify()
        if self.durable_step is not None and step is not None and step < self.durable_step:
            self._ledger = commit.forget_committed(self._ledger)
        return replies

    def _warn(self, message: str) -> None:
        self._story.record(names.EVENT_CHECKPOINT_WARNING, message, warning=True)
