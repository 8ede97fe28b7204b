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

from rover_kf.api import names, termination_log
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
    Ack,
    CoordinatorStatus,
    ScaleRequest,
    ServerLostRequest,
    UnavailablePodsRequest,
)
from rover_kf.coordinator.commit.commit_service import CommitService
from rover_kf.coordinator.data_service import DataLeaseService
from rover_kf.coordinator.departures import DepartingPods
from rover_kf.coordinator.failover import CoordinatorFailover
from rover_kf.coordinator.fault_reports import FaultyNodes, OomKills
from rover_kf.coordinator.hangs import HangReporter
from rover_kf.coordinator.preflight import PreflightRunner
from rover_kf.coordinator.shutdown import FinalPoll, VerdictStore
from rover_kf.coordinator.status_builder import build_status
from rover_kf.coordinator.straggler_reporter import StragglerReporter
from rover_kf.coordinator.telemetry import Telemetry
from rover_kf.elastic.rendezvous import persisted_state
from rover_kf.elastic.rendezvous.effects import (
    Effect,
    EmitEvent,
    JobClosed,
    RoundEnded,
    RoundStarted,
    SendReply,
)
from rover_kf.elastic.rendezvous.rendezvous import Rendezvous
from rover_kf.metrics.resource_usage import PodCpuSeries
from rover_kf.sidecar.event_log import EventLog
from rover_kf.sidecar.http.app import read, reply
from rover_kf.sidecar.http.long_poll import PendingRequests
from rover_kf.sidecar.http.token_clock import TokenClock
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.sidecar.state_replica import StateReplica
from rover_kf.sidecar.tasks import run_forever
from rover_kf.system.steady_clock import MonotonicWallClock

_log = logging.getLogger(__name__)

TICK_SECONDS = 0.05
_MAX_SLOW = 8
"""Pods of a status: where more are slow, the others are not what is wrong."""
LINGER_SECONDS = 10.0
"""How long the coordinator outlives its own pod's launcher for members that still flush."""

_AFTER = re.compile("[0-9]{1,18}")

RendezvousCall = Callable[[int, float], "tuple[Effect, ...]"]


class CoordinatorService:
    """The role; daemon.py starts and stops it."""

    def __init__(
        self,
        settings: SidecarSettings,
        event_log: EventLog,
        commits: CommitService,
        replica: StateReplica,
    ) -> None:
        self._settings, self._event_log, self._commits = settings, event_log, commits
        self._replica = replica
        self._rendezvous = Rendezvous(settings.limits(1))
        self._clock = MonotonicWallClock(TokenClock(settings).now())
        self._started_at = self._clock.now()
        self._telemetry = Telemetry(settings.policy.scaling.window, self._started_at)
        self._pending = PendingRequests()
        self._is_empty = asyncio.Event()
        self._final_poll = FinalPoll()
        self._ticker: asyncio.Task[None] | None = None
        self._verdict_store = VerdictStore(settings.volume_path, settings.pod_uid)
        self._hangs = HangReporter(settings.policy.hang, event_log)
        self._stragglers = StragglerReporter(event_log)
        self._faulty_nodes = FaultyNodes()
        self._preflight = PreflightRunner(settings.policy.preflight, event_log, self._faulty_nodes)
        self._oom_kills = OomKills()
        self._cpu = PodCpuSeries(settings.policy.scaling.window)
        self._data_leases = DataLeaseService(event_log)
        self._departing_pods = DepartingPods(commits.sealed_steps, self._can_continue)
        self._lost_servers: set[str] = set()
        """Servers of ours that are gone with their nodes, by uid."""
        self._failover = CoordinatorFailover(
            settings, self._export_state, self._import_state, self._on_generation
        )

    async def start(self) -> None:
        """Find the first round's number, and the verdict if the job has ended already."""
        scan = await self._commits.scan_storage()
        self._rendezvous = Rendezvous(self._settings.limits(scan.first_round))
        closed = self._verdict_store.read()
        if closed is not None:
            self._rendezvous.world.close(closed.exit_code, closed.verdict)
        self._failover.begin(scan.generation)
        await self._commits.claim()
        self._ticker = run_forever(self._tick)

    async def stop(self) -> None:
        """Wait a little for members that still need us after the job's end, then stop."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._is_empty.wait(), LINGER_SECONDS)
        if self._rendezvous.world.closed:
            await self._final_poll.wait(time.monotonic())
            last = termination_log.pack(self.status(self._final_poll.after))
            termination_log.write(self._settings.volume_path, last)
        if self._ticker is not None:
            self._ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticker

    def local_routes(self) -> list[web.RouteDef]:
        """What launcher and trainer of this pod post: the Unix socket's share."""
        return self._failover.guard_routes(self._shared_routes())

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
            *self._data_leases.routes(),
            *self._departing_pods.routes(),
        ]

    def routes(self) -> list[web.RouteDef]:
        """For the TCP port."""
        routes = [
            *self._shared_routes(),
            *self._commits.routes(),
            *self._failover.routes(),
            web.post(names.PATH_EVENTS, self._on_event),
            web.post(names.PATH_SCALE, self._on_scale),
            web.post(names.PATH_ABSENT, self._on_absent),
            web.post(names.PATH_LOST, self._on_lost),
            web.get(names.PATH_STATUS, self._on_status),
        ]
        return self._failover.guard_routes(routes)

    def status(self, after: int) -> CoordinatorStatus:
        """Everything that a controller wants to know."""
        told = build_status(
            self._rendezvous,
            self._telemetry,
            self._commits,
            job=self._settings.job,
            started_at=self._started_at,
            now=self._clock.now(),
        )
        told = dataclasses.replace(
            told, faulty_nodes=self._faulty_nodes.nodes, preflight=self._preflight.last
        )
        events, hangs = self._event_log.after(after), self._hangs.after(after)
        slow = self._stragglers.current[:_MAX_SLOW]
        kills = self._oom_kills.all()
        data = (
            *self._data_leases.status(),
            *self._telemetry.dataset_progress.status(self._clock.now()),
        )
        told = dataclasses.replace(told, data=data, oom_kills=kills, stragglers=slow)
        cpus = self._cpu.usages()
        told = dataclasses.replace(told, cpu=cpus[0].use if cpus else None, pod_cpus=cpus)
        return dataclasses.replace(told, events=events, hangs=hangs)

    # -- requests -----------------------------------------------------------------------------

    async def _on_join(self, request: web.Request) -> web.Response:
        message = await read(request, JoinRequest)
        job = self._rendezvous
        return await self._submit(request, lambda ticket, now: job.join(message, ticket, now))

    async def _on_watch(self, request: web.Request) -> web.Response:
        message = await read(request, WatchRequest)
        self._cpu.add(message.pod, message.cpu)
        job = self._rendezvous
        return await self._submit(request, lambda ticket, now: job.watch(message, ticket, now))

    async def _on_failure(self, request: web.Request) -> web.Response:
        message = await read(request, Failure)
        self._faulty_nodes.on_failure(message, self._members(), self._clock.now())
        self._preflight.on_failure(message)
        self._oom_kills.on_failure(message)
        job = self._rendezvous
        return await self._submit(request, lambda ticket, now: job.failure(message, ticket, now))

    async def _on_finish(self, request: web.Request) -> web.Response:
        message = await read(request, FinishRequest)
        job = self._rendezvous
        return await self._submit(request, lambda ticket, now: job.finish(message, ticket, now))

    async def _on_leave(self, request: web.Request) -> web.Response:
        message = await read(request, LeaveRequest)
        self._execute(self._rendezvous.leave(message, time.monotonic()))
        return reply(Ack())

    async def _on_preflight(self, request: web.Request) -> web.Response:
        message = await read(request, CheckRequest)
        expected = self._rendezvous.world.expected
        now, at = time.monotonic(), self._clock.now()
        return reply(self._preflight.on_request(message, expected, now=now, timestamp=at))

    async def _on_scale(self, request: web.Request) -> web.Response:
        message = await read(request, ScaleRequest)
        now = time.monotonic()
        self._execute(self._rendezvous.scale(message.nodes, message.reason, now))
        return reply(Ack())

    async def _on_absent(self, request: web.Request) -> web.Response:
        told = await read(request, UnavailablePodsRequest)
        now = time.monotonic()
        self._execute(self._rendezvous.mark_unavailable(told.ranks, told.reason, now))
        return reply(Ack())

    async def _on_lost(self, request: web.Request) -> web.Response:
        told = await read(request, ServerLostRequest)
        if told.uid not in self._lost_servers:
            self._lost_servers.add(told.uid)
            self._execute(self._rendezvous.restart_round(told.reason, time.monotonic()))
        return reply(Ack())

    async def _on_event(self, request: web.Request) -> web.Response:
        self._event_log.add(await read(request, Event))
        return reply(Ack())

    async def _on_stacks(self, request: web.Request) -> web.Response:
        self._hangs.watch.on_stacks(await read(request, StackReport))
        return reply(Ack())

    async def _on_samples(self, request: web.Request) -> web.Response:
        now = self._clock.now()
        report = (await read(request, StepReport)).adjust_clock(now)
        self._hangs.watch.on_report(report)
        self._stragglers.on_report(report, now)
        took = self._telemetry.report(report, now)
        if took is not None:
            message = f"round {report.round}: every rank steps again, {took:.2f} s after the change"
            self._event_log.record(names.EVENT_RECOVERED, message)
        if report.samples:
            last = report.samples[-1]
            monotonic = time.monotonic()
            effects = self._rendezvous.observe(
                report.round,
                last.step,
                seconds=last.seconds,
                ended_at=monotonic - max(now - last.ended_at, 0.0),
                now=monotonic,
            )
            self._execute(effects)
        return reply(Ack())

    async def _on_status(self, request: web.Request) -> web.Response:
        asked = request.query.get("after", "0")
        after = int(asked) if _AFTER.fullmatch(asked) else 0
        if after != names.NO_EVENTS:
            self._final_poll.record_poll(time.monotonic(), after)
        return reply(self.status(after))

    # -- effects ------------------------------------------------------------------------------

    async def _submit(self, request: web.Request, call: RendezvousCall) -> web.Response:
        ticket, answer = self._pending.open()
        try:
            self._execute(call(ticket, time.monotonic()))
            return (await answer).response(request)
        except asyncio.CancelledError:
            self._execute(self._rendezvous.on_disconnect(ticket, time.monotonic()))
            raise
        finally:
            self._pending.close(ticket)

    def _execute(self, effects: tuple[Effect, ...]) -> None:
        self._persist_state()  # before anybody is answered
        for effect in effects:
            match effect:
                case SendReply(ticket, answer):
                    self._pending.answer(ticket, answer)
                case EmitEvent(reason, message, warning):
                    self._event_log.record(reason, message, warning=warning)
                case RoundStarted(current, adopted):
                    self._commits.undurable.on_round_started(None if adopted else current)
                    self._telemetry.on_round_started(current, self._clock.now())
                    self._cpu.begin()
                    self._hangs.watch.on_round_started(current)
                    self._stragglers.on_round_started(current)
                    self._preflight.on_round_started(current.members)
                case RoundEnded(planned, why):
                    _log.info("the round has ended: %s", why)
                    self._telemetry.on_round_ended(self._clock.now(), planned=planned)
                    self._hangs.watch.on_round_ended()
                case JobClosed():
                    self._verdict_store.write(effect)
                    self._commits.undurable.on_job_ended()
                    self._hangs.watch.on_round_ended()

        world = self._rendezvous.world
        if world.closed and world.member_index:
            self._is_empty.clear()
        else:
            self._is_empty.set()

    def _on_generation(self, generation: int) -> None:
        self._rendezvous.world.generation = generation
        self._commits.set_generation(generation)

    # -- what outlives this process -------------------------------------------------------------

    def _persist_state(self) -> None:
        mark = (persisted_state.fingerprint(self._rendezvous), self._faulty_nodes.nodes)
        self._failover.persist_state(mark, (member.pod for member in self._members()))

    def _can_continue(self) -> bool:
        """Whether those who are here are enough for another round."""
        world = self._rendezvous.world
        return world.closed is None and world.limits.largest_world(len(world.member_index)) > 0

    def _members(self) -> tuple[Member, ...]:
        world = self._rendezvous.world
        return world.round.members if world.round else ()

    def _export_state(self) -> CoordinatorState:
        told = persisted_state.export(self._rendezvous)
        return CoordinatorState(
            0, 0, told, self._telemetry.export_state(), self._faulty_nodes.nodes
        )

    def _import_state(self, state: CoordinatorState, runs: bool) -> None:  # noqa: FBT001 - the one flag
        self._faulty_nodes.add(*state.faulty_nodes)
        if state.rendezvous.any_step_reported or state.rendezvous.round:
            self._preflight.on_round_started()
        if state.telemetry is not None:
            self._telemetry.import_state(state.telemetry)
        now = time.monotonic()
        self._execute(
            persisted_state.restore(self._rendezvous, state.rendezvous, now, is_running=runs)
        )

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = time.monotonic()
            self._failover.on_generation(self._replica.generation)
            self._data_leases.tick(now)
            self._departing_pods.tick()
            for pod in self._preflight.tick(now, self._clock.now()):
                self._rendezvous.mark_alive(pod, now)
            self._execute(self._rendezvous.tick(now))
            if rejection := self._commits.rejection:
                self._execute(self._rendezvous.reject_job(rejection, now))
            if verdict := self._commits.undurable.verdict:
                self._execute(self._rendezvous.fail_job(verdict, now))
            self._hangs.watch.on_storage_read(self._commits.restored_bytes)
            self._execute(self._hangs.tick(self._rendezvous, now, self._clock.now()))
            missing = self._rendezvous.world.lacks_pods
            self._telemetry.pods_missing(self._clock.now(), missing=missing)
