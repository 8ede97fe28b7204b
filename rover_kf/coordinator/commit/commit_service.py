# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The coordinator's half of checkpoints: what is sealed, named and waited for, the common step.

Its memory is a cache: what is committed stands on storage, what is sealed in the pods' arenas;
a coordinator that was killed and started again is told of them by all pods' sidecars.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping, Sequence

from aiohttp import web

from rover_kf.api import names
from rover_kf.api.checkpoints import (
    Durable,
    GivenUp,
    Left,
    Named,
    NamedRequest,
    ResolveReply,
    ResolveRequest,
    Sealed,
    WaitRequest,
)
from rover_kf.api.replica_checks import SealTaken
from rover_kf.api.status import Acknowledged
from rover_kf.checkpoint import commit, rank_ranges
from rover_kf.checkpoint.resharding import step_selection
from rover_kf.checkpoint.resharding.step_resolution import newest_in_memory
from rover_kf.checkpoint.storage.storage_protocol import StoredCheckpoints
from rover_kf.coordinator.commit import storage_scan
from rover_kf.coordinator.commit.committer import Committer
from rover_kf.coordinator.commit.persist_scheduler import Naming
from rover_kf.coordinator.commit.sealed_steps import Savers, SealAccount
from rover_kf.coordinator.commit.undurable import Unstorable
from rover_kf.coordinator.replica_comparison import ReplicaVerdicts
from rover_kf.coordinator.replication.peer_copy import Keeper
from rover_kf.coordinator.replication.scheduler import Replication
from rover_kf.coordinator.restore.barrier import CommonStep, Patience
from rover_kf.coordinator.restore.plan_store import PlanFile
from rover_kf.sidecar.http.app import packed, read, reply
from rover_kf.sidecar.http.long_poll import LongPoll
from rover_kf.sidecar.interfaces import Peers, Story
from rover_kf.sidecar.settings import SidecarSettings

_log = logging.getLogger(__name__)

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
        self._seals, self._savers = SealAccount(), Savers()
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
        self._poll, self._answering = LongPoll(), asyncio.Lock()
        self._committer = Committer(settings, story, storage, self._committed)
        self._unstorable = Unstorable(self._seals, self._committer)

    @property
    def sealed_step(self) -> int | None:
        """Newest step in memory that the round could restore."""
        return self._seals.step

    @property
    def durable_step(self) -> int | None:
        """Newest committed step on storage."""
        return self._committer.step

    @property
    def storage_rate(self) -> float:
        """Bytes a second that storage took of the slowest pod lately; 0: not measured."""
        return self._committer.rate

    @property
    def seals(self) -> SealAccount:
        """What ranks have told of their slots; to be read only."""
        return self._seals

    @property
    def unstorable(self) -> Unstorable:
        """What can never become durable."""
        return self._unstorable

    async def first_generation(self) -> int:
        """Number of the first round: above everything that is on storage. Call it once.

        A storage that cannot be read in time is told as a Warning; memory goes on.
        """
        found = await storage_scan.look(self._storage) if self._storage is not None else None
        await self._common.recall()
        self._replication.recall()
        if found is None:
            return 1
        if found.wrong:
            self._warn(found.wrong)
        self._committer.take_look(found, self._common.began)
        return found.generation

    def _committed(self, key: commit.Key) -> None:
        self._naming.committed(key)
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
            web.post(names.PATH_COMMIT_LEFT, self._on_left),
            *self._replication.routes(),
            *self._verdicts.routes(),
        ]

    async def _on_sealed(self, request: web.Request) -> web.Response:
        sealed = await read(request, Sealed)
        if self._seals.take(sealed):
            key = (sealed.round, sealed.step)
            is_safe = sealed.restored and self._committer.is_durable(sealed.step)
            if not is_safe and not self._committer.is_committed(key):
                self._naming.sealed(key)
            holdings = self._seals.holdings(key)
            # A rank whose slot was overwritten before it was read would be left without a copy.
            alike = self._seals.is_alike(key)
            whole = alike or len(holdings) == sealed.world_size
            # A restored slot keeps the round that it was sealed in, its replica would have another.
            if (self._keeper or not alike) and whole and not sealed.restored:
                self._replication.sealed(key, holdings)
            elif whole and not alike:
                self._replication.restored(holdings)
            elif alike and self._seals.pods(key) > 1:
                self._replication.held_by_all(sealed.step)
            if self._keeper is None and self._seals.pods(key) == 1:
                self._replication.alone(sealed.step)
            self._poll.notify()
        if idle := self._savers.idle(sealed, time.monotonic()):
            self._warn(
                f"rank {sealed.rank} saves, and of {sealed.world_size} ranks "
                f"{rank_ranges.shown(idle)} never: only what every rank saves comes to storage; "
                "call save, or step, on every rank"
            )
        return reply(SealTaken(check=self._verdicts.is_due(sealed)))

    async def _on_durable(self, request: web.Request) -> web.Response:
        durable = await read(request, Durable)
        return reply(await self._committer.take(durable))

    async def _on_resolve(self, request: web.Request) -> web.Response:
        found = await self._common.ask(await read(request, ResolveRequest))
        if len(found.holdings) <= 1:
            return reply(found)
        # A world of another size: all ranks are answered at once, each with the slots of all.
        async with self._answering:
            return await asyncio.to_thread(packed, request, found)

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
        if self._committer.is_waited_for and not told.pause_seconds:
            self._naming.hurry()  # a newer step has replaced it, and is as good to who waits
        self._poll.notify()
        if told.pause_seconds:
            await self._committer.give_up(told)
        return reply(Acknowledged())

    async def _on_left(self, request: web.Request) -> web.Response:
        self._unstorable.left(await read(request, Left))
        return reply(Acknowledged())

    async def _on_wait(self, request: web.Request) -> web.Response:
        wanted = await read(request, WaitRequest)
        if wanted.level == "replica":
            return reply(await self._replication.wait(wanted.step, wanted.timeout_seconds))
        done = self._committer.is_durable(wanted.step)
        if not done:
            self._committer.look_again(lambda: self._common.began)
        if not done and wanted.timeout_seconds > 0:  # who only asks is not waited for
            self._naming.hurry(wanted.step)
            look = lambda: self._committer.is_durable(wanted.step) or None  # noqa: E731 - of one line
            with self._committer.waited_for():
                done = bool(await self._poll.answer(look, wanted.timeout_seconds))
        if done:
            return reply(Acknowledged())
        if never := self._unstorable.why(wanted.step):
            return reply(Acknowledged(done=False, reason=never, hopeless=True))
        why = f"step {wanted.step} is not durable yet; the newest is {self.durable_step}"
        if lacking := self._seals.lacking(wanted.step):
            why += f"; ranks {rank_ranges.shown(lacking)} have not saved it: every rank has to"
        if unlike := self._committer.unlike:
            why += f"; {unlike}"
        return reply(Acknowledged(done=False, reason=why))

    # -- the common step ---------------------------------------------------------------------

    def _begin_round(self, number: int) -> None:
        self._committer.begin_round(number)

    async def _choose(self, requests: Sequence[ResolveRequest]) -> Mapping[int, ResolveReply]:
        absent = await self._replication.absent(requests)
        if self._keeper is not None and not newest_in_memory(requests, absent):
            refused = {step for request in requests for step in request.refused}
            kept = await self._keeper.kept()
            absent += tuple(holding for holding in kept if holding.step not in refused)
        known = (self.durable_step or 0) if self._committer.has_looked else None
        over = threading.Event()
        asked = (self._storage, requests, absent, self._warn, known)
        try:
            replies = await asyncio.to_thread(step_selection.choose, *asked, pause=over.wait)
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
        self._committer.go_on_from(step)
        return replies

    def _warn(self, message: str) -> None:
        self._story.record(names.EVENT_CHECKPOINT_WARNING, message, warning=True)
