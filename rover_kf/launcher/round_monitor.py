# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a round still runs, asked of the coordinator by a thread; used under torchrun only.

Where the coordinator names a step at which the world is left, the processes are told of it, save
there and rest; then torchrun, which would end them anywhere, may.
"""

from __future__ import annotations

import pathlib
import queue
import threading
from typing import Any

from rover_kf.api import names
from rover_kf.api.membership import Member, Round, WatchReply, WatchRequest
from rover_kf.launcher import drain_file
from rover_kf.launcher.sidecar_requests import LONGEST_POLL, Call, SidecarConnector

RETRY_SECONDS = 0.2


class RoundMonitor:
    """A thread that asks the coordinator whether a round still runs.

    Processes mark in the folder ``resting`` that they have saved.
    """

    def __init__(
        self,
        client: SidecarConnector,
        current: Round,
        member: Member,
        *,
        shared_dir: pathlib.Path,
        resting: pathlib.Path,
    ) -> None:
        self._client, self._current, self._member = client, current, member
        self._shared_dir, self._resting = shared_dir, resting
        self._outcomes: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._call: Call[WatchReply] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="round watch")
        self.has_ended, self.closed = False, False
        """Whether the round has ended; whether the job has."""

    @property
    def is_over(self) -> bool:
        """Whether the processes may be ended: the round has, or all of them rest."""
        return self.has_ended or len(list(self._resting.iterdir())) >= self._member.processes

    def start(self) -> RoundMonitor:
        """Start the thread."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the thread and withdraw the open request."""
        self._stopped.set()
        if self._call is not None:
            self._call.cancel()
        self._outcomes.put(None)
        self._thread.join()

    def _run(self) -> None:
        drain_at, world = 0, None
        while not self._stopped.is_set():
            member, number = self._member, self._current.number
            request = WatchRequest(member.pod, member.incarnation, number, drain_at, world)
            self._call = Call(
                self._client, names.PATH_WATCH, request, reply=WatchReply, outcomes=self._outcomes
            ).start()
            reply = self._wait()
            if reply is None:  # sidecar or coordinator are away: training goes on
                self._stopped.wait(RETRY_SECONDS)
                continue
            if reply.drain_at != drain_at:
                drain_at = reply.drain_at
                drain_file.write(self._shared_dir, drain_at)
            world = self._current if reply.action == "report" else None
            if reply.action in ("restart", "closed"):
                self.has_ended, self.closed = True, reply.action == "closed"
                return

    def _wait(self) -> WatchReply | None:
        try:
            outcome = self._outcomes.get(timeout=LONGEST_POLL)
        except queue.Empty:
            return None
        value: WatchReply | None = None if outcome is None else outcome.value
        return value
