# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""rover-run's agent: join a round, run the training processes, watch, repeat or end.

One thread decides, over one queue of events (event_loop.py). Training continues while sidecar or
coordinator are away; requests are retried.
"""

from __future__ import annotations

import dataclasses
import pathlib
import queue
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.faults.node_check_messages import CheckRequest
from rover_kf.api.membership import (
    FinishRequest,
    Identity,
    JoinReply,
    JoinRequest,
    LeaveRequest,
    Member,
    Round,
    StateHandedOverRequest,
)
from rover_kf.api.status import Ack
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.launcher import job_end, oom_kills
from rover_kf.launcher.arguments import LaunchSpec
from rover_kf.launcher.event_loop import EventLoop, StopRequested, ZygoteLost
from rover_kf.launcher.node_check.client import run_node_check
from rover_kf.launcher.round_runner import RoundResult, RoundRunner
from rover_kf.launcher.settings import LauncherSettings
from rover_kf.launcher.sidecar_requests import SidecarConnector
from rover_kf.launcher.worker_group import WorkerGroup
from rover_kf.launcher.zygote_client import ZygoteClient

_STORED_SECONDS = 10.0
"""Where the newest step is on storage as well: the others can read it there."""
_POLL_SECONDS = 5.0
_PATIENCE = 2.0
"""Seconds without a coordinator: the whole job may be ending."""


def wait_for_handover(
    event_loop: EventLoop, shared_dir: pathlib.Path, round_: int, *, until: float, stored: bool
) -> str:
    """Wait until every rank of a later round has its state; return why it has not.

    ``until`` is the end of the pod's grace in monotonic seconds; ``stored``: the newest step is on
    storage.

    Raises:
        RoverError: nobody can be asked.
    """
    if not _has_rank_local_state(shared_dir):
        return ""
    reply = Ack(done=False, reason="the pod's grace is over")
    if stored:
        until = min(until, time.monotonic() + _STORED_SECONDS)
    while (left := until - time.monotonic()) > 0:
        seconds = min(left, _POLL_SECONDS)
        request = StateHandedOverRequest(round_, seconds)
        limit = seconds + _PATIENCE
        reply = event_loop.request(
            names.PATH_TAKEN, request, Ack, patience=_PATIENCE, limit=limit, timeout=limit
        )
        if reply.done:
            return ""
    return reply.reason


def _has_rank_local_state(shared_dir: pathlib.Path) -> bool:
    """Whether a slot here has what other ranks' slots have not."""
    folders = [path.parent for path in (shared_dir / names.ARENA_DIR).glob("[0-9]*/control")]
    newest = [seal for folder in folders for seal in Arena(folder).sealed()[:1]]
    return any(not seal.replicated for seal in newest)


# To start again at once would only be killed again, until the budget of restarts is spent: the
# controller hears of the kill at its next look, and the kubelet takes a moment to give what it
# asks.
RAISE_TIMEOUT_SECONDS = 9.0
"""After that training goes on with what there is: no controller may be there, or no room. The
others take a pod that says nothing for longer than that for lost (elastic.limits: stop_lease)."""
LIMIT_POLL_SECONDS = 0.1
"""The kernel tells nobody of a raised limit."""


def wait_for_limit_raise(event_loop: EventLoop, limit: int, max_limit: int) -> float:
    """Wait until the container may use more than at the kill; return the seconds.

    Both limits are in bytes. ``limit`` 0: unknown, there is no wait. ``max_limit`` 0: it is not
    raised.

    Raises:
        StopRequested: the pod ends.
    """
    began = time.monotonic()
    if not limit or limit >= max_limit:
        return 0.0
    while time.monotonic() - began < RAISE_TIMEOUT_SECONDS and oom_kills.limit() <= limit:
        event_loop.pause(LIMIT_POLL_SECONDS)
    return time.monotonic() - began


T = TypeVar("T")
SIDECAR_PATIENCE = 60.0
"""Seconds that the sidecar has to come up."""
TERM_GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL for training processes when this pod leaves."""
LEAVE_PATIENCE = 2.0
"""Seconds for the good-bye; the others would notice without it."""
IDLE_SECONDS = 2.0
"""Between two questions of a drained launcher whether there is a place again."""


class Agent:
    """One run of rover-run in a pod of ours."""

    def __init__(
        self, launch: LaunchSpec, settings: LauncherSettings, shared_dir: pathlib.Path
    ) -> None:
        events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.launch, self.shared_dir = launch, shared_dir
        self.grace_seconds = settings.grace_seconds
        self.max_memory, self.serves = settings.max_memory, settings.serves
        self.worker_group = WorkerGroup(ZygoteClient(events), settings.inherited)
        self.event_loop = EventLoop(
            SidecarConnector(shared_dir), events, self.worker_group.on_event
        )
        self.incarnation = uuid.uuid4().hex[:12]
        self.last_round = 0
        self._pod = ""

    def run(self) -> int:
        """Run rover-run; return its exit code."""
        self.event_loop.install_signal_handlers()
        self.worker_group.start()
        try:
            identity = self._identify()
            self._pod = identity.pod
            return self._train(identity)
        except errors.SidecarUnavailable as error:
            log_line(f"{error}; is the container {names.SIDECAR_CONTAINER} running?")
            return names.EXIT_RETRY
        except errors.InputError as error:
            log_line(str(error))
            return names.EXIT_USER_ERROR
        except errors.RoverError as error:
            log_line(f"cannot go on, another container has to try: {error}")
            return names.EXIT_RETRY
        except StopRequested as stop:
            self.event_loop.ignore_stops()
            self._end(stop)
            return names.EXIT_DRAINED
        finally:
            self.worker_group.zygote.stop()

    def _identify(self) -> Identity:
        until = time.monotonic() + SIDECAR_PATIENCE

        def ask() -> Identity:
            patience = max(until - time.monotonic(), 0.0)
            return self.event_loop.request(names.PATH_SELF, None, Identity, patience=patience)

        return self._retry_on_zygote_loss(ask)

    def _retry_on_zygote_loss(self, action: Callable[[], T]) -> T:
        """What the act gives; tried again with another zygote as often as one dies."""
        while True:
            try:
                return action()
            except ZygoteLost:  # noqa: PERF203 - a retry
                log_line("the process with torch loaded died; starting another")
                self.worker_group.start()

    def _train(self, identity: Identity) -> int:
        processes = self._retry_on_zygote_loss(
            lambda: self.worker_group.count_processes(self.event_loop, self.launch.processes)
        )
        member = Member(
            identity.pod, self.incarnation, identity.node_rank, processes, identity.node
        )
        while True:
            code = self._retry_on_zygote_loss(lambda: self._participate(identity, member))
            if code is not None:
                return code

    def _participate(self, identity: Identity, member: Member) -> int | None:
        """One round; None to go on with the next."""
        # What earlier processes have left can be read through until their successors ask for it.
        self.event_loop.start(names.PATH_EXAMINE, {}, Ack)
        store = self.worker_group.claim_store(self.event_loop, identity.address)
        if identity.preflight:
            # Else the time that a slow node takes to load torch would be its measurement's.
            self.worker_group.wait_ready(self.event_loop)
            check = CheckRequest(member, identity.address, store.port)
            if why := run_node_check(self.event_loop, self.worker_group, check):
                log_line(f"this node is not checked: {why}")
        self.worker_group.wait_nearly_ready(self.event_loop)
        reply = self._join(JoinRequest(member, identity.address, store.port, self.last_round))
        if reply.round is None:
            return self._on_job_closed(reply)
        self.last_round = reply.round.number
        ended = self._run_round(identity, reply.round)
        if ended.finished:
            reply = self._finish(identity, reply.round)
        # Only now: the others may use this pod's store until their processes have ended too.
        self.worker_group.zygote.drop_store(store.pid)
        if ended.unusable_reason:
            log_line(
                f"training cannot go on in this container, another has to: {ended.unusable_reason}"
            )
            self.event_loop.ignore_stops()
            self._end(StopRequested(ended.unusable_reason, time.monotonic()))
            return names.EXIT_RETRY
        if ended.oom_limit:
            waited = wait_for_limit_raise(self.event_loop, ended.oom_limit, self.max_memory)
            log_line(f"waited {waited:.1f} s for more than {ended.oom_limit} bytes of memory")
        if ended.closed is not None:
            reply = JoinReply("closed", None, ended.closed.exit_code, ended.closed.reason)
        return self._on_job_closed(reply) if reply.action == "closed" else None

    def _run_round(self, identity: Identity, current: Round) -> RoundResult:
        session = RoundRunner(
            self.worker_group,
            self.event_loop,
            identity,
            self.incarnation,
            drain_seconds=min(names.DRAIN_SECONDS, self.grace_seconds / 2),
            serves=self.serves,
        )
        # The next round's store opens while this one trains.
        self.worker_group.prepare_store(identity.address)
        try:
            return session.run(current, self.launch, self.shared_dir)
        except ZygoteLost:
            self.worker_group.start()
            return session.report(session.zygote_failure(current))

    def _join(self, request: JoinRequest) -> JoinReply:
        idle = False
        while True:
            reply = self.event_loop.request(names.PATH_JOIN, request, JoinReply)
            if reply.action in ("start", "closed"):
                return reply
            if reply.action == "drained":
                if not idle:
                    log_line(f"{reply.reason}: idle until SIGTERM")
                idle = True
                self.event_loop.pause(IDLE_SECONDS)

    def _finish(self, identity: Identity, current: Round) -> JoinReply:
        request = FinishRequest(identity.pod, self.incarnation, current.number)
        while True:
            reply = self.event_loop.request(names.PATH_FINISH, request, JoinReply)
            if reply.action == "report":
                request = dataclasses.replace(request, world=current)
            elif reply.action != "wait":
                return reply

    def _on_job_closed(self, reply: JoinReply) -> int:
        self.event_loop.ignore_stops()
        exit_code = job_end.exit_code(
            reply,
            lambda: self.event_loop.request(
                names.PATH_FLUSH, {}, Ack, patience=30.0, timeout=job_end.FLUSH_PATIENCE
            ),
            self.event_loop.pause,
            shared_dir=self.shared_dir,
            log_line=log_line,
        )
        self._leave("the job has ended")
        return exit_code

    def _end(self, stop: StopRequested) -> None:
        """This pod goes, the job does not: others need its newest state, here or on storage."""
        until = stop.received_at + self.grace_seconds - names.END_SECONDS
        self._leave(str(stop), drained=stop.drained)
        self.worker_group.kill(self.event_loop, term_grace=TERM_GRACE)
        left = until - time.monotonic()
        if not self.last_round or left <= 0:
            return
        stored = False
        try:
            reply = self.event_loop.request(
                names.PATH_FLUSH, {}, Ack, patience=0.0, limit=left, timeout=left
            )
            stored = reply.done and not reply.reason
            if not reply.done:
                log_line(f"the newest checkpoint is in memory only: {reply.reason}")
        except errors.RoverError as error:
            log_line(f"the newest checkpoint may be in memory only: {error}")
        try:
            why = wait_for_handover(
                self.event_loop, self.shared_dir, self.last_round, until=until, stored=stored
            )
            if why:
                log_line(f"the others have not taken this pod's part of the state: {why}")
        except errors.RoverError as error:
            log_line(f"whether the others have this pod's part is not known: {error}")

    def _leave(self, reason: str, *, drained: bool = False) -> None:
        if not self._pod:
            return
        request = LeaveRequest(self._pod, self.incarnation, reason, drained)
        try:
            self.event_loop.request(names.PATH_LEAVE, request, Ack, patience=LEAVE_PATIENCE)
        except errors.RoverError as error:
            log_line(f"could not say good-bye, the others will notice: {error}")
        except ZygoteLost:
            log_line("the process with torch loaded died while this pod was leaving")


def log_line(message: str) -> None:
    """Write a line to stderr, which is the container's log."""
    sys.stderr.write(f"rover-run: {message}\n")
    sys.stderr.flush()
