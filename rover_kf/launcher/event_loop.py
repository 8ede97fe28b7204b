# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Events of the launcher and the requests it waits for: one queue, one thread that decides.

The agent's base: ``next_event`` gives what happened (a process ended, a reply came), ``ask`` waits
for one reply while everything else goes on being noted. SIGTERM and SIGINT surface as Stop.
"""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Callable
from typing import Any, TypeVar

from rover_kf import errors
from rover_kf.launcher.sidecar_requests import (
    LONGEST_POLL,
    Call,
    CallCompleted,
    SidecarConnector,
)
from rover_kf.launcher.zygote_client import ZygoteDied

T = TypeVar("T")

RETRY_SECONDS = 0.1
"""Between two tries while sidecar or coordinator are away; grows to ten times of it."""


class StopRequested(Exception):
    """SIGTERM or SIGINT at a moment of the monotonic clock.

    ``drained`` says whether the training processes have saved and left since.
    """

    def __init__(self, signal_name: str, received_at: float, *, drained: bool = False) -> None:
        super().__init__(signal_name)
        self.received_at, self.drained = received_at, drained


class ZygoteLost(Exception):
    """The zygote died, and every training process with it."""


class EventLoop:
    """The queue and the calls in flight."""

    def __init__(
        self,
        client: SidecarConnector,
        events: queue.SimpleQueue[Any],
        on_event: Callable[[Any], None],
    ) -> None:
        self.client = client
        self.events = events
        self._on_event = on_event
        self._stops_enabled = True

    def install_signal_handlers(self) -> None:
        """Turn SIGTERM and SIGINT into events; as PID 1 also reap orphans."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda got, _: self.events.put(signal.Signals(got)))
        if os.getpid() == 1:
            signal.signal(signal.SIGCHLD, lambda *_: _reap_orphans())

    def ignore_stops(self) -> None:
        """From now on the end is near anyway: signals no longer interrupt."""
        self._stops_enabled = False

    def start(
        self, path: str, message: object, reply: type[T], timeout: float = LONGEST_POLL
    ) -> Call[T]:
        """Send a request; its outcome comes as a Replied event, within so many seconds."""
        outcomes = self.events
        return Call(
            self.client, path, message, reply=reply, outcomes=outcomes, timeout=timeout
        ).start()

    def next_event(self, timeout: float | None = None) -> Any:
        """The next event; None after the timeout.

        Raises:
            StopRequested: a signal to end came.
            ZygoteLost: the zygote died.
        """
        try:
            event = self.events.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(event, signal.Signals) and self._stops_enabled:
            raise StopRequested(event.name, time.monotonic())
        if isinstance(event, ZygoteDied):
            raise ZygoteLost
        self._on_event(event)
        return event

    def pause(self, seconds: float) -> None:
        """Let time pass while events go on being noted."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.next_event(left)

    def request(
        self,
        path: str,
        message: object,
        reply: type[T],
        *,
        patience: float = 1e9,
        limit: float = 1e9,
        timeout: float = LONGEST_POLL,
    ) -> T:
        """Send a request until it is answered.

        ``patience`` are the seconds of retries while nobody answers. After ``limit`` seconds even a
        received request is withdrawn. After ``timeout`` seconds one counts as lost.

        Raises:
            SidecarUnavailable, ClusterUnavailable: nobody answered for so long.
            RoverError: the request was refused.
        """
        begun, delay = time.monotonic(), RETRY_SECONDS
        until = begun + min(patience, limit)
        while True:
            call = self.start(path, message, reply, timeout)
            try:
                replied = self._wait_for(call, begun + limit)
            except BaseException:  # raised again; also an exit by a signal ends the call
                call.cancel()
                raise
            if replied.error is None:
                return replied.value  # type: ignore[no-any-return] # the call's own reply type
            if not is_transient(replied.error) or time.monotonic() > until:
                raise replied.error
            self.pause(delay)
            delay = min(delay * 1.5, 10 * RETRY_SECONDS)

    def _wait_for(self, call: Call[Any], until: float) -> CallCompleted:
        while (left := until - time.monotonic()) > 0:
            event = self.next_event(min(left, LONGEST_POLL))
            if isinstance(event, CallCompleted) and event.call is call:
                return event
        raise errors.SidecarUnavailable("the pod's sidecar did not answer in time")


def is_transient(error: errors.RoverError) -> bool:
    """Whether trying again may help: nobody answered, as opposed to a refusal."""
    return isinstance(error, (errors.SidecarUnavailable, errors.ClusterUnavailable))


def _reap_orphans() -> None:
    # The zygote itself may be among them: its end shows as the end of its messages.
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return
