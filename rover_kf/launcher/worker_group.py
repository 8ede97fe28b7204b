# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The training processes and stores of this pod, as the events tell of them."""

from __future__ import annotations

import pathlib
import signal
import time
from collections.abc import Mapping, Sequence

from rover_kf import errors
from rover_kf.launcher import preload
from rover_kf.launcher.arguments import LaunchSpec
from rover_kf.launcher.event_loop import EventLoop
from rover_kf.launcher.rank_env import RankEnv
from rover_kf.launcher.stderr_tail import StderrTail, is_terminal
from rover_kf.launcher.zygote_client import (
    DevicesCounted,
    ProcessExited,
    ServiceExited,
    StoreOpened,
    TorchLoaded,
    ZygoteClient,
    ZygoteReady,
)

KILL_PATIENCE = 30.0
"""Seconds that the kernel has to end a process after SIGKILL."""
AHEAD_SECONDS = 0.8
"""By which a pod joins before it can fork: the others train on for a second meanwhile."""
MAX_STARTS = 5
"""Of the process that loads torch; then the container begins anew, and the kubelet backs off."""


class WorkerGroup:
    """What runs in this pod now."""

    def __init__(self, zygote: ZygoteClient, inherited: Mapping[str, str]) -> None:
        self.zygote = zygote
        self.inherited = inherited
        self.live: set[int] = set()
        """Local ranks that have not ended."""
        self._store: StoreOpened | None = None
        self._opening = False
        self._device_counts: DevicesCounted | None = None
        self._tails: dict[int, StderrTail] = {}
        self._starts = 0
        """Of zygotes of which none has been ready yet; 0: it is."""
        self._ready_at: float | None = None
        """When training processes can be forked, as far as is known; None: torch is not there."""

    def start(self) -> None:
        """Start the zygote; after its death, anew.

        Raises:
            RoverError: one after the other has died before it was ready.
        """
        if self._starts == MAX_STARTS:
            raise errors.RoverError(
                f"the process that loads torch ended {MAX_STARTS} times before it was ready; what "
                "it said stands above: mend the image (torch, a /tmp that can be written)"
            )
        self._starts += 1
        self.zygote.stop()
        self.live.clear()
        self._store, self._opening, self._ready_at = None, False, None
        self.zygote.start(self.inherited)

    def on_event(self, event: object) -> None:
        """Take in what an event says."""
        if isinstance(event, ProcessExited):
            self.live.discard(event.local_rank)
            if event.local_rank in self._tails:
                self._tails[event.local_rank].flush()
        elif isinstance(event, StoreOpened):
            self._store, self._opening = event, False
        elif isinstance(event, ServiceExited):
            self._on_service_end(event)
        elif isinstance(event, DevicesCounted):
            self._device_counts = event
        elif isinstance(event, TorchLoaded):
            self._ready_at = time.monotonic() + preload.rest_seconds(event.seconds)
        elif isinstance(event, ZygoteReady):
            self._starts, self._ready_at = 0, time.monotonic()

    def _on_service_end(self, event: ServiceExited) -> None:
        if self._store is not None and self._store.pid == event.pid:
            self._store = None  # the next round's store was killed: open another
        elif self._opening and event.code > 0:
            self._opening = False
            raise errors.RoverError(
                f"the round's store could not be opened (exit code {event.code}); its traceback "
                "stands above"
            )

    def spawn(self, rank_envs: Sequence[RankEnv], launch: LaunchSpec) -> None:
        """Fork the training processes of a round."""
        for place in rank_envs:
            for left_over in (place.error_file, place.variables["TORCHELASTIC_ERROR_FILE"]):
                pathlib.Path(left_over).unlink(missing_ok=True)
        self.live.update(place.local_rank for place in rank_envs)
        for place in rank_envs:
            if is_terminal():
                self.zygote.spawn(place, launch, None)
                continue
            tail = self._tails[place.local_rank] = StderrTail()
            self.zygote.spawn(place, launch, tail.write_end)
            tail.close_write_end()

    def stderr_tail(self, local_rank: int) -> tuple[str, ...]:
        """The last lines that the process wrote on stderr, as far as they are known."""
        tail = self._tails.get(local_rank)
        return tail.lines() if tail else ()

    def prepare_store(self, host: str) -> None:
        """Open a store for the round to come, unless there is one."""
        if self._store is None and not self._opening:
            self._opening = True
            self.zygote.open_store(host)

    def claim_store(self, event_loop: EventLoop, host: str) -> StoreOpened:
        """The store that was opened; waits for it."""
        while self._store is None:
            self.prepare_store(host)
            event_loop.next_event()
        store, self._store = self._store, None
        return store

    def wait_ready(self, event_loop: EventLoop) -> None:
        """Wait until all is loaded: a zygote that still loads takes no order."""
        while self._starts:
            event_loop.next_event()

    def wait_nearly_ready(self, event_loop: EventLoop) -> None:
        """Wait until training processes can be forked, or will be AHEAD_SECONDS from now."""
        while True:
            ready_at = self._ready_at
            left = None if ready_at is None else ready_at - AHEAD_SECONDS - time.monotonic()
            if left is not None and left <= 0:
                return
            event_loop.next_event(left)

    def count_processes(self, event_loop: EventLoop, nproc: str) -> int:
        """How many processes ``--nproc-per-node`` means on this machine.

        Raises:
            InputError: accelerators were asked for and there is none.
        """
        if nproc.isdecimal():
            return int(nproc)
        self.zygote.count()
        while self._device_counts is None:
            event_loop.next_event()
        counted = self._device_counts
        if nproc == "gpu" and not counted.gpu:
            raise errors.InputError("--nproc-per-node=gpu, but there is no GPU; use cpu or auto")
        if nproc == "cpu":
            return counted.cpu
        return counted.gpu or counted.cpu

    def kill(self, event_loop: EventLoop, *, term_grace: float = 0.0) -> None:
        """End all training processes; returns when the last is gone.

        Raises:
            RoverError: a process outlived SIGKILL (it hangs in the kernel).
        """
        if term_grace:
            self._signal(event_loop, signal.SIGTERM, term_grace)
        self._signal(event_loop, signal.SIGKILL, KILL_PATIENCE)
        if self.live:
            raise errors.RoverError(f"processes {sorted(self.live)} do not end by SIGKILL")

    def _signal(self, event_loop: EventLoop, number: int, patience: float) -> None:
        until = time.monotonic() + patience
        if self.live:
            self.zygote.kill(number)
        while self.live and (left := until - time.monotonic()) > 0:
            event_loop.next_event(left)
