# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a round still runs, asked of the coordinator by a thread; used under torchrun only."""

from __future__ import annotations

import queue
import threading
from typing import Any

from rover_kf.api import names
from rover_kf.api.membership import Round, WatchReply, WatchRequest
from rover_kf.launcher.sidecar_client import LONGEST_POLL, Call, SidecarClient

RETRY_SECONDS = 0.2


class RoundWatch:
    """One round's.

    Args:
        client: of the pod's sidecar.
        current: the round.
        pod: whose launcher asks.
        incarnation: of the launcher.
    """

    def __init__(self, client: SidecarClient, current: Round, pod: str, incarnation: str) -> None:
        self._client, self._current = client, current
        self._pod, self._incarnation = pod, incarnation
        self._outcomes: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._call: Call[WatchReply] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="round watch")
        self.over, self.closed = False, False
        """Whether the round is to end; whether the job has ended."""

    def start(self) -> RoundWatch:
        """Begin to ask."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ask no more; the open request is withdrawn."""
        self._stopped.set()
        if self._call is not None:
            self._call.cancel()
        self._outcomes.put(None)
        self._thread.join()

    def _run(self) -> None:
        drain_at, world = 0, None
        while not self._stopped.is_set():
            request = WatchRequest(
                self._pod, self._incarnation, self._current.number, drain_at, world
            )
            self._call = Call(
                self._client, names.PATH_WATCH, request, reply=WatchReply, outcomes=self._outcomes
            ).start()
            reply = self._wait()
            if reply is None:  # sidecar or coordinator are away: training goes on
                self._stopped.wait(RETRY_SECONDS)
                continue
            drain_at, world = reply.drain_at, None
            if reply.action == "report":
                world = self._current
            elif reply.action in ("drain", "restart", "closed"):
                self.over, self.closed = True, reply.action == "closed"
                if reply.action != "drain":
                    return

    def _wait(self) -> WatchReply | None:
        try:
            outcome = self._outcomes.get(timeout=LONGEST_POLL)
        except queue.Empty:
            return None
        value: WatchReply | None = None if outcome is None else outcome.value
        return value
