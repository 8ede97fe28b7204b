# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The coordinator's role: the rendezvous over HTTP, the job's telemetry, its status.

In the first pod's sidecar only. Carries out what elastic.rendezvous decides: a request is kept open
under a ticket until an effect answers it; a request whose connection closes is told as such. What
members cannot tell its successor is kept in the pod's volume and in other pods (succession.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import re
import time
from collections.abc import Callable

from aiohttp import web

from rover_kf.api import final_status, names, termination_log
from rover_kf.api.coordinator_state import CoordinatorState
from rover_kf.api.faults.hang_reports import StackReport
from rover_kf.api.faults.node_check_messages import CheckRequest
from rover_kf.api.jobs import Event
from rover_kf.api.membership import (
    Failure,
    FinishRequest,
    JoinRequest,
    LeaveRequest,
    Member,
    WatchRequest,
)
from rover_kf.api.samples import StepReport
from rover_kf.api.status import (
    AbsentRequest,
    Acknowledged,
    CoordinatorStatus,
    LostRequest,
    ScaleRequest,
)
from rover_kf.coordinator.commit.commit_service import Commits
from rover_kf.coordinator.data_service import Leases
from rover_kf.coordinator.departures import Leavers
from rover_kf.coordinator.failover import Succession
from rover_kf.coordinator.fault_reports import MemoryKills, UnfitNodes
from rover_kf.coordinator.hangs import Hangs
from rover_kf.coordinator.preflight import Preflights
from rover_kf.coordinator.shutdown import LastLook, VerdictFile
from rover_kf.coordinator.status_builder import standing
from rover_kf.coordinator.straggler_reporter import SlowRanks
from rover_kf.coordinator.telemetry import Telemetry
from rover_kf.elastic.rendezvous import persisted_state
from rover_kf.elastic.rendezvous.effects import Answer, Broken, Closed, Effect, Formed, Tell
from rover_kf.elastic.rendezvous.rendezvous import Rendezvous
from rover_kf.metrics.cpu_series import CpuOfPods
from rover_kf.sidecar.event_log import Chronicle
from rover_kf.sidecar.http.app import read, reply
from rover_kf.sidecar.http.pending_requests import OpenRequests
from rover_kf.sidecar.http.token_clock import ClusterTime
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.sidecar.state_replica import StateCopy
from rover_kf.sidecar.tasks import lasting
from rover_kf.system.steady_clock import SteadyClock

_log = logging.getLogger(__name__)

TICK_SECONDS = 0.05
_MOST_SLOW = 8
"""Pods of a status: where more are slow, the others are not what is wrong."""
LINGER_SECONDS = 10.0
"""How long the coordinator outlives its own pod's launcher for members that still flush."""

_AFTER = re.compile("[0-9]{1,18}")

Act = Callable[[int, float], "tuple[Effect, ...]"]


class Coordinator:
    """The role; daemon.py starts and stops it."""

    def __init__(
        self,
        settings: SidecarSettings,
        chronicle: Chronicle,
        commits: Commits,
        copy: StateCopy,
    ) -> None:
        self._settings, self._chronicle, self._commits = settings, chronicle, commits
        self._copy = copy
        self._rendezvous = Rendezvous(settings.limits(1))
        self._clock = SteadyClock(ClusterTime(settings).now())
        self._started_at = self._clock.now()
        self._telemetry = Telemetry(settings.window_seconds, self._started_at)
        self._open = OpenRequests()
        self._deserted = asyncio.Event()
        self._last_look = LastLook()
        self._ticker: asyncio.Task[None] | None = None
        self._verdict = VerdictFile(settings.home, settings.pod_uid)
        self._hangs = Hangs(settings.hang, chronicle)
        self._slow_ranks = SlowRanks(chronicle)
        self._unfit = UnfitNodes()
        self._preflights = Preflights(
            settings.preflight, settings.preflight_seconds, chronicle, self._unfit
        )
        self._memory_kills = MemoryKills()
        self._cpu = CpuOfPods(settings.window_seconds)
        self._leases = Leases(chronicle)
        self._leavers = Leavers(commits.seals, self._can_go_on)
        self._lost: set[str] = set()
        """Servers of ours that are gone with their nodes, by uid."""
        self._succession = Succession(settings, self._capture, self._absorb)

    async def start(self) -> None:
        """Find the first round's number, and the verdict if the job has ended already."""
        first = await self._commits.first_generation()
        self._rendezvous = Rendezvous(self._settings.limits(first))
        closed = self._verdict.read()
        if closed is not None:
            self._rendezvous.world.close(closed.exit_code, closed.verdict)
        self._succession.begin()
        self._ticker = lasting(self._tick)

    async def stop(self) -> None:
        """Wait a little for members that still need us after the job's end, then stop."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._deserted.wait(), LINGER_SECONDS)
        if self._rendezvous.world.closed:
            await self._last_look.wait(time.monotonic())
            last = final_status.pack(self.status(self._last_look.after))
            termination_log.leave(self._settings.home, last)
        if self._ticker is not None:
            self._ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticker

    def local_routes(self) -> list[web.RouteDef]:
        """What launcher and trainer of this pod post: the Unix socket's share."""
        return self._succession.guarded(self._shared_routes())

    def _shared_routes(self) -> list[web.RouteDef]:
        return [
            web.post(names.PATH_JOIN, self._on_join),
            web.post(names.PATH_WATCH, self._on_watch),
            web.post(names.PATH_LEAVE, self._on_leave),
            web.post(names.PATH_FAILURE, self._on_failure),
            web.post(names.PATH_FINISH, self._on_finish),
            web.post(names.PATH_STACKS, self._on_stacks),
            web.post(names.PATH_SAMPLES, self._on_samples),
            web.post(names.PATH_PREFLIGHT, self._on_preflight),
            *self._leases.routes(),
            *self._leavers.routes(),
        ]

    def routes(self) -> list[web.RouteDef]:
        """For the TCP port."""
        routes = [
            *self._shared_routes(),
            *self._commits.routes(),
            *self._succession.routes(),
            web.post(names.PATH_EVENTS, self._on_event),
            web.post(names.PATH_SCALE, self._on_scale),
            web.post(names.PATH_ABSENT, self._on_absent),
            web.post(names.PATH_LOST, self._on_lost),
            web.get(names.PATH_STATUS, self._on_status),
        ]
        return self._succession.guarded(routes)

    def status(self, after: int) -> CoordinatorStatus:
        """Everything that a controller wants to know."""
        told = standing(
            self._rendezvous,
            self._telemetry,
            self._commits,
            job=self._settings.job,
            started_at=self._started_at,
            now=self._clock.now(),
        )
        told = dataclasses.replace(told, unfit=self._unfit.known, preflight=self._preflights.last)
        events, hangs = self._chronicle.after(after), self._hangs.after(after)
        slow = self._slow_ranks.known[:_MOST_SLOW]
        kills = self._memory_kills.all()
        data = (*self._leases.status(), *self._telemetry.places.status(self._clock.now()))
        told = dataclasses.replace(told, data=data, memory_kills=kills, slow=slow)
        cpus = self._cpu.uses()
        told = dataclasses.replace(told, cpu=cpus[0].use if cpus else None, cpus=cpus)
        return dataclasses.replace(told, events=events, hangs=hangs)

    # -- requests -----------------------------------------------------------------------------

    async def _on_join(self, request: web.Request) -> web.Response:
        message = await read(request, JoinRequest)
        job = self._rendezvous
        return await self._ask(request, lambda *at: job.join(message, *at))

    async def _on_watch(self, request: web.Request) -> web.Response:
        message = await read(request, WatchRequest)
        self._cpu.add(message.pod, message.cpu)
        job = self._rendezvous
        return await self._ask(request, lambda *at: job.watch(message, *at))

    async def _on_failure(self, request: web.Request) -> web.Response:
        message = await read(request, Failure)
        self._unfit.failed(message, self._members(), self._clock.now())
        self._preflights.failed(message)
        self._memory_kills.heard(message)
        job = self._rendezvous
        return await self._ask(request, lambda *at: job.failure(message, *at))

    async def _on_finish(self, request: web.Request) -> web.Response:
        message = await read(request, FinishRequest)
        job = self._rendezvous
        return await self._ask(request, lambda *at: job.finish(message, *at))

    async def _on_leave(self, request: web.Request) -> web.Response:
        message = await read(request, LeaveRequest)
        self._carry_out(self._rendezvous.leave(message, time.monotonic()))
        return reply(Acknowledged())

    async def _on_preflight(self, request: web.Request) -> web.Response:
        message = await read(request, CheckRequest)
        expected = self._rendezvous.world.expected
        now, at = time.monotonic(), self._clock.now()
        return reply(self._preflights.ask(message, expected, now=now, at=at))

    async def _on_scale(self, request: web.Request) -> web.Response:
        message = await read(request, ScaleRequest)
        now = time.monotonic()
        self._carry_out(self._rendezvous.scale(message.nodes, message.reason, now))
        return reply(Acknowledged())

    async def _on_absent(self, request: web.Request) -> web.Response:
        told = await read(request, AbsentRequest)
        now = time.monotonic()
        self._carry_out(self._rendezvous.absent(told.ranks, told.reason, now))
        return reply(Acknowledged())

    async def _on_lost(self, request: web.Request) -> web.Response:
        told = await read(request, LostRequest)
        if told.uid not in self._lost:
            self._lost.add(told.uid)
            self._carry_out(self._rendezvous.renew(told.reason, time.monotonic()))
        return reply(Acknowledged())

    async def _on_event(self, request: web.Request) -> web.Response:
        self._chronicle.add(await read(request, Event))
        return reply(Acknowledged())

    async def _on_stacks(self, request: web.Request) -> web.Response:
        self._hangs.watch.stacks(await read(request, StackReport))
        return reply(Acknowledged())

    async def _on_samples(self, request: web.Request) -> web.Response:
        now = self._clock.now()
        report = (await read(request, StepReport)).heard(now)
        self._hangs.watch.heard(report)
        self._slow_ranks.heard(report, now)
        took = self._telemetry.report(report, now)
        if took is not None:
            message = f"round {report.round}: every rank steps again, {took:.2f} s after the change"
            self._chronicle.record(names.EVENT_RECOVERED, message)
        if report.samples:
            last = report.samples[-1]
            monotonic = time.monotonic()
            effects = self._rendezvous.observe(
                report.round,
                last.step,
                seconds=last.seconds,
                at=monotonic - max(now - last.ended_at, 0.0),
                now=monotonic,
            )
            self._carry_out(effects)
        return reply(Acknowledged())

    async def _on_status(self, request: web.Request) -> web.Response:
        asked = request.query.get("after", "0")
        after = int(asked) if _AFTER.fullmatch(asked) else 0
        if after != names.NO_EVENTS:
            self._last_look.asked(time.monotonic(), after)
        return reply(self.status(after))

    # -- effects ------------------------------------------------------------------------------

    async def _ask(self, request: web.Request, act: Act) -> web.Response:
        ticket, answer = self._open.open()
        try:
            self._carry_out(act(ticket, time.monotonic()))
            return (await answer).response(request)
        except asyncio.CancelledError:
            self._carry_out(self._rendezvous.disconnected(ticket, time.monotonic()))
            raise
        finally:
            self._open.close(ticket)

    def _carry_out(self, effects: tuple[Effect, ...]) -> None:
        self._note()  # before anybody is answered
        for effect in effects:
            match effect:
                case Answer(ticket, answer):
                    self._open.answer(ticket, answer)
                case Tell(reason, message, warning):
                    self._chronicle.record(reason, message, warning=warning)
                case Formed(current, adopted):
                    self._commits.unstorable.formed(None if adopted else current)
                    self._telemetry.formed(current, self._clock.now())
                    self._cpu.begin()
                    self._hangs.watch.formed(current)
                    self._slow_ranks.formed(current)
                    self._preflights.formed(current.members)
                case Broken(planned, why):
                    _log.info("the round has ended: %s", why)
                    self._telemetry.broken(self._clock.now(), planned=planned)
                    self._hangs.watch.broken()
                case Closed():
                    self._verdict.write(effect)
                    self._commits.unstorable.ended()
                    self._hangs.watch.broken()

        world = self._rendezvous.world
        if world.closed and world.seats:
            self._deserted.clear()
        else:
            self._deserted.set()

    # -- what outlives this process -------------------------------------------------------------

    def _note(self) -> None:
        mark = (persisted_state.mark(self._rendezvous), self._unfit.known)
        self._succession.note(mark, (member.pod for member in self._members()))

    def _can_go_on(self) -> bool:
        """Whether those who are here are enough for another round."""
        world = self._rendezvous.world
        return world.closed is None and world.limits.fitting(len(world.seats)) > 0

    def _members(self) -> tuple[Member, ...]:
        world = self._rendezvous.world
        return world.round.members if world.round else ()

    def _capture(self) -> CoordinatorState:
        told = persisted_state.remember(self._rendezvous)
        return CoordinatorState(0, 0, told, self._telemetry.remember(), self._unfit.known)

    def _absorb(self, state: CoordinatorState, runs: bool) -> None:  # noqa: FBT001 - the one flag
        self._unfit.add(*state.unfit)
        if state.rendezvous.stepped or state.rendezvous.round:
            self._preflights.formed()
        if state.telemetry is not None:
            self._telemetry.recall(state.telemetry)
        now = time.monotonic()
        self._carry_out(persisted_state.recall(self._rendezvous, state.rendezvous, now, runs=runs))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = time.monotonic()
            self._succession.heard(self._copy.known)
            self._leases.tick(now)
            self._leavers.tick()
            for pod in self._preflights.tick(now, self._clock.now()):
                self._rendezvous.heard(pod, now)
            self._carry_out(self._rendezvous.tick(now))
            if verdict := self._commits.unstorable.verdict:
                self._carry_out(self._rendezvous.condemn(verdict, now))
            self._carry_out(self._hangs.tick(self._rendezvous, now, self._clock.now()))
            missing = self._rendezvous.world.lacks_pods
            self._telemetry.pods_missing(self._clock.now(), missing=missing)
