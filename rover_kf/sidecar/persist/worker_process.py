# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The sidecar's end of one storage process: asked with patience, given up without waiting."""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from rover_kf import errors
from rover_kf.checkpoint.format.chunks import CHUNK_BYTES
from rover_kf.sidecar.persist import worker_protocol

SYNC_BYTES_PER_SECOND = 10e6
"""The slowest storage that is waited for: a sync of what lies in the page cache tells nothing."""
_START_SECONDS = 120.0
"""For the process itself, on a machine that has no core to spare."""
_SLICE_SECONDS = 0.5
_END_SECONDS = 5.0
"""That a process has to end once it has hung up."""


class WorkerUnresponsive(Exception):
    """No word in time; the process is to be given up."""


class StorageWorker:
    """One process, started here.

    Args:
        root: the job's folder.

    Raises:
        StorageError: it could not be started.
    """

    def __init__(self, root: pathlib.Path) -> None:
        self.is_idle = False
        """Whether it waits for a request."""
        self._killed, self._disconnected = False, False
        self.active_at = time.monotonic()
        """When it last said a word, or was asked."""
        ours, theirs = socket.socketpair()
        self._channel, self._poll = ours, select.poll()
        self._poll.register(ours, select.POLLIN)
        self.buffer = os.memfd_create("rover-storage", os.MFD_CLOEXEC)
        """What it reads is here, a piece at a time."""
        os.ftruncate(self.buffer, CHUNK_BYTES)
        line = [sys.executable, "-m", "rover_kf.sidecar.persist.worker_main"]
        given = [str(theirs.fileno()), str(self.buffer), str(root)]
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [*line, *given],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), self.buffer),
                )
        except OSError as cause:
            self._close()
            raise errors.StorageError(
                f"no process could be started to ask {root}: {cause.strerror}"
            ) from cause

    def wait_ready(self) -> None:
        """Wait until it can be asked; storage has no part in that."""
        self._receive(_START_SECONDS)
        self.is_idle = True

    def request(
        self,
        words: dict[str, Any],
        blob: bytes,
        timeout: float,
        *,
        on_next: Callable[[int], None] = lambda _: None,
    ) -> tuple[dict[str, Any], bytes]:
        """Ask, and wait for the next frame that says more than that storage answers.

        Args:
            words: of the request; empty to go on with one.
            blob: bytes behind them.
            timeout: seconds without a word after which storage counts as silent.
            on_next: is called before each piece that is written, with its bytes.

        Raises:
            Silent: no word came in time, or the process has ended.
        """
        self.is_idle, self.active_at = False, time.monotonic()
        self._send(words, blob)
        waited = timeout
        while True:
            found, content = self._receive(waited)
            waited = timeout
            if "syncing" in found:
                waited += found["syncing"] / SYNC_BYTES_PER_SECOND
            elif "next" in found:
                on_next(found["next"])
                self._send({}, b"")
            elif "alive" not in found:
                self.is_idle = "piece" not in found
                return found, content

    def kill(self) -> None:
        """Kill it; whoever waits for its word gets Silent. What the kernel holds stays a while.

        Killed, it makes no system call any more, however late the one that hangs returns.
        """
        self._killed = True
        self._process.kill()
        with contextlib.suppress(OSError):  # it is closed already
            self._channel.shutdown(socket.SHUT_RDWR)

    @property
    def exit_reason(self) -> str:
        """How it ended by itself; empty: it runs, or was given up."""
        if self._killed:
            return ""
        if self._disconnected:  # a moment before it has ended
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
        code = self._process.poll()
        return "" if code is None else f"with exit code {code}"

    def has_exited(self) -> bool:
        """Whether the kernel has let go of it."""
        if self._process.poll() is None:
            return False
        self._close()
        return True

    def _send(self, words: dict[str, Any], blob: bytes) -> None:
        try:
            worker_protocol.send(self._channel, words, blob)
        except OSError as gone:
            self._disconnected = True
            raise WorkerUnresponsive from gone

    def _receive(self, timeout: float) -> tuple[dict[str, Any], bytes]:
        # In slices: a machine that stood still meanwhile has not waited for storage.
        for _ in range(max(1, math.ceil(timeout / _SLICE_SECONDS))):
            if self._poll.poll(_SLICE_SECONDS * 1000):
                try:
                    found = worker_protocol.receive(self._channel)
                except (EOFError, OSError) as gone:
                    self._disconnected = True
                    raise WorkerUnresponsive from gone
                self.active_at = time.monotonic()
                return found
        raise WorkerUnresponsive

    def _close(self) -> None:
        self._channel.close()
        if self.buffer >= 0:
            os.close(self.buffer)
            self.buffer = -1
