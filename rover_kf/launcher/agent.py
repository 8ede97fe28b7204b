# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""rover-run's own part: join a round, run the training processes, watch, again or end.

One thread decides; everything that happens comes through one queue (errands.py). Training never
stops because sidecar or coordinator are away: requests are tried again. It stops when a process
dies, when the coordinator says so, or by SIGTERM.
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
from rover_kf.api import names, termination_log
from rover_kf.api.faults.node_check_messages import CheckRequest
from rover_kf.api.membership import (
    FinishRequest,
    Identity,
    JoinReply,
    JoinRequest,
    LeaveRequest,
    Member,
    Round,
)
from rover_kf.api.status import Acknowledged
from rover_kf.launcher import oom_kills, state_handover
from rover_kf.launcher.arguments import Launch
from rover_kf.launcher.event_loop import Errands, Stop, ZygoteLost
from rover_kf.launcher.node_check_client import pass_check
from rover_kf.launcher.round_runner import Ended, Session
from rover_kf.launcher.settings import LauncherSettings
from rover_kf.launcher.sidecar_requests import SidecarClient
from rover_kf.launcher.worker_group import Crew
from rover_kf.launcher.zygote_client import Nursery

# To start again at once would only be killed again, until the budget of restarts is spent: the
# controller hears of the kill at its next look, and the kubelet takes a moment to give what it
# asks.
PATIENCE_SECONDS = 9.0


"""After that training goes on with what there is: no controller may be there, or no room. The
others take a pod that says nothing for longer than that for lost (elastic.limits: stop_lease)."""


LOOK_SECONDS = 0.1


"""The kernel tells nobody of a raised limit."""


def wait(errands: Errands, limit: int, most: int) -> float:
    """Return when the container may use more than it could when its process was killed.

    Args:
        errands: go on meanwhile.
        limit: bytes that it could use then; 0: not known, nothing is waited for.
        most: bytes that the limit may be raised to; 0: it is not raised.

    Returns:
        Seconds that were waited.

    Raises:
        Stop: the pod ends.
    """
    began = time.monotonic()
    if not limit or limit >= most:
        return 0.0
    while time.monotonic() - began < PATIENCE_SECONDS and oom_kills.limit() <= limit:
        errands.pause(LOOK_SECONDS)
    return time.monotonic() - began


T = TypeVar("T")


SIDECAR_PATIENCE = 60.0


"""Seconds that the sidecar has to come up."""


TERM_GRACE = 2.0


"""Seconds between SIGTERM and SIGKILL for training processes when this pod leaves."""


LEAVE_PATIENCE = 2.0


"""Seconds for the good-bye; the others would notice without it."""


FLUSH_PATIENCE = 600.0


"""Seconds that the newest step has to become durable after training has ended."""


IDLE_SECONDS = 2.0


"""Between two questions of a drained launcher whether there is a place again."""


class Agent:
    """One run of rover-run in a pod of ours."""

    def __init__(self, launch: Launch, settings: LauncherSettings, home: pathlib.Path) -> None:
        events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.launch, self.home = launch, home
        self.grace_seconds = settings.grace_seconds
        self.most_memory, self.serves = settings.most_memory, settings.serves
        self.crew = Crew(Nursery(events), settings.inherited)
        self.errands = Errands(SidecarClient(home), events, self.crew.note)
        self.incarnation = uuid.uuid4().hex[:12]
        self.last_round = 0
        self._pod = ""

    def run(self) -> int:
        """Everything; returns the exit code."""
        self.errands.install_signals()
        self.crew.start()
        try:
            identity = self._identify()
            self._pod = identity.pod
            return self._train(identity)
        except errors.SidecarUnavailable as error:
            say(f"{error}; is the container {names.SIDECAR_CONTAINER} running?")
            return names.EXIT_RETRY
        except errors.InputError as error:
            say(str(error))
            return names.EXIT_USER_ERROR
        except errors.RoverError as error:
            say(f"cannot go on, another container has to try: {error}")
            return names.EXIT_RETRY
        except Stop as stop:
            self.errands.ignore_stops()
            self._end(stop)
            return names.EXIT_DRAINED
        finally:
            self.crew.nursery.stop()

    def _identify(self) -> Identity:
        until = time.monotonic() + SIDECAR_PATIENCE

        def ask() -> Identity:
            patience = max(until - time.monotonic(), 0.0)
            return self.errands.ask(names.PATH_SELF, None, Identity, patience=patience)

        return self._with_zygote(ask)

    def _with_zygote(self, act: Callable[[], T]) -> T:
        """What the act gives; tried again with another zygote as often as one dies."""
        while True:
            try:
                return act()
            except ZygoteLost:  # noqa: PERF203 - a retry
                say("the process with torch loaded died; starting another")
                self.crew.start()

    def _train(self, identity: Identity) -> int:
        processes = self._with_zygote(
            lambda: self.crew.count_processes(self.errands, self.launch.processes)
        )
        member = Member(
            identity.pod, self.incarnation, identity.node_rank, processes, identity.node
        )
        while True:
            code = self._with_zygote(lambda: self._take_part(identity, member))
            if code is not None:
                return code

    def _take_part(self, identity: Identity, member: Member) -> int | None:
        """One round; None to go on with the next."""
        # What earlier processes have left can be read through until their successors ask for it.
        self.errands.start(names.PATH_EXAMINE, {}, Acknowledged)
        store = self.crew.take_store(self.errands, identity.address)
        if identity.preflight:
            # Else the time that a slow node takes to load torch would be its measurement's.
            self.crew.ready(self.errands)
            self._preflight(CheckRequest(member, identity.address, store.port))
        self.crew.nearly_ready(self.errands)
        reply = self._join(JoinRequest(member, identity.address, store.port, self.last_round))
        if reply.round is None:
            return self._closed(reply)
        self.last_round = reply.round.number
        ended = self._run_round(identity, reply.round)
        if ended.finished:
            reply = self._finish(identity, reply.round)
        # Only now: the others may use this pod's store until their processes have ended too.
        self.crew.nursery.drop_store(store.pid)
        if ended.unfit:
            say(f"training cannot go on in this container, another has to: {ended.unfit}")
            self.errands.ignore_stops()
            self._end(Stop(ended.unfit, time.monotonic()))
            return names.EXIT_RETRY
        if ended.starved:
            waited = wait(self.errands, ended.starved, self.most_memory)
            say(f"waited {waited:.1f} s for more than {ended.starved} bytes of memory")
        if ended.closed is not None:
            reply = JoinReply("closed", None, ended.closed.exit_code, ended.closed.reason)
        return self._closed(reply) if reply.action == "closed" else None

    def _preflight(self, request: CheckRequest) -> None:
        why = pass_check(self.errands, self.crew, request)
        if why:
            say(f"this node is not checked: {why}")

    def _run_round(self, identity: Identity, current: Round) -> Ended:
        session = Session(
            self.crew,
            self.errands,
            identity,
            self.incarnation,
            drain_seconds=min(names.DRAIN_SECONDS, self.grace_seconds / 2),
            serves=self.serves,
        )
        # The next round's store opens while this one trains.
        self.crew.prepare_store(identity.address)
        try:
            return session.run(current, self.launch, self.home)
        except ZygoteLost:
            self.crew.start()
            return session.report(session.zygote_lost(current))

    def _join(self, request: JoinRequest) -> JoinReply:
        idle = False
        while True:
            reply = self.errands.ask(names.PATH_JOIN, request, JoinReply)
            if reply.action in ("start", "closed"):
                return reply
            if reply.action == "drained":
                if not idle:
                    say(f"{reply.reason}: idle until SIGTERM")
                idle = True
                self.errands.pause(IDLE_SECONDS)

    def _finish(self, identity: Identity, current: Round) -> JoinReply:
        request = FinishRequest(identity.pod, self.incarnation, current.number)
        while True:
            reply = self.errands.ask(names.PATH_FINISH, request, JoinReply)
            if reply.action == "report":
                request = dataclasses.replace(request, world=current)
            elif reply.action != "wait":
                return reply

    def _closed(self, reply: JoinReply) -> int:
        self.errands.ignore_stops()
        exit_code = reply.exit_code
        if exit_code:
            say(f"the job has failed: {reply.reason}")
            termination_log.leave(self.home, reply.reason)
        else:
            exit_code = self._flush()
        self._leave("the job has ended")
        return exit_code

    def _flush(self) -> int:
        """Wait until the newest step is durable: a model that is not stored is not trained."""
        until = time.monotonic() + FLUSH_PATIENCE
        while True:
            try:
                reply = self.errands.ask(
                    names.PATH_FLUSH, {}, Acknowledged, patience=30.0, timeout=FLUSH_PATIENCE
                )
            except errors.RoverError as error:
                reply = Acknowledged(done=False, reason=str(error))
            if reply.done:
                return names.EXIT_DONE
            yet = "" if reply.hopeless else " yet"
            say(f"the newest checkpoint is not durable{yet}: {reply.reason}")
            if reply.hopeless:  # a pod that is tried again would train for the same end
                termination_log.leave(self.home, reply.reason)
                return names.EXIT_USER_ERROR
            if time.monotonic() > until:
                return names.EXIT_RETRY
            self.errands.pause(1.0)

    def _end(self, stop: Stop) -> None:
        """This pod goes, the job does not: others need its newest state, here or on storage."""
        until = stop.at + self.grace_seconds - names.END_SECONDS
        self._leave(str(stop), drained=stop.drained)
        self.crew.kill(self.errands, term_grace=TERM_GRACE)
        left = until - time.monotonic()
        if not self.last_round or left <= 0:
            return
        stored = False
        try:
            reply = self.errands.ask(
                names.PATH_FLUSH, {}, Acknowledged, patience=0.0, limit=left, timeout=left
            )
            stored = reply.done and not reply.reason
            if not reply.done:
                say(f"the newest checkpoint is in memory only: {reply.reason}")
        except errors.RoverError as error:
            say(f"the newest checkpoint may be in memory only: {error}")
        try:
            why = state_handover.wait(
                self.errands, self.home, self.last_round, until=until, stored=stored
            )
            if why:
                say(f"the others have not taken this pod's part of the state: {why}")
        except errors.RoverError as error:
            say(f"whether the others have this pod's part is not known: {error}")

    def _leave(self, why: str, *, drained: bool = False) -> None:
        if not self._pod:
            return
        request = LeaveRequest(self._pod, self.incarnation, why, drained)
        try:
            self.errands.ask(names.PATH_LEAVE, request, Acknowledged, patience=LEAVE_PATIENCE)
        except errors.RoverError as error:
            say(f"could not say good-bye, the others will notice: {error}")
        except ZygoteLost:
            say("the process with torch loaded died while this pod was leaving")


def say(message: str) -> None:
    """One line on stderr, which is the container's log."""
    sys.stderr.write(f"rover-run: {message}\n")
    sys.stderr.flush()
