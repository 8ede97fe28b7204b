# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A training process's stderr, passed on at once, with its end kept for classification.

A thread copies all bytes from a pipe to the container's stderr; they need not be lines or text. The
end is in the pipe already when a process has ended, though a grandchild may keep the pipe open.
"""

from __future__ import annotations

import collections
import contextlib
import os
import re
import select
import threading
import time
from collections.abc import Iterator

STDERR = 2
MAX_BYTES = 32 << 10
"""Kept at most."""
MAX_LINES, LONGEST_LINE = 200, 500
RECENT_SECONDS = 60.0
"""What is older does not tell of the end: a program may survive what it complained of."""
_CHUNK = 64 << 10
_MAX_READS = 64
"""At one go, so that a grandchild that writes without end holds nobody up."""
_PATIENCE = 1.0
"""Seconds that the end of a process waits for a stderr that nobody reads."""


def is_terminal() -> bool:
    """Whether people sit before it: programs draw otherwise there, so it is left as it is."""
    return os.isatty(STDERR)


class StderrTail:
    """A pipe for one training process's stderr, which passes everything on to a descriptor."""

    def __init__(self, target: int = STDERR) -> None:
        self._target = target
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._kept: collections.deque[tuple[float, bytes]] = collections.deque()
        self._size = 0
        self._ended = False
        self._lock = threading.Lock()
        threading.Thread(target=self._run, daemon=True, name="stderr").start()

    def close_write_end(self) -> None:
        """The process has its own copy: without this one its end shows as the end of the pipe."""
        os.close(self.write_end)

    def flush(self) -> None:
        """Pass on what has been written until now."""
        with self._try_locked() as held:
            if held:
                self._drain()

    def lines(self) -> tuple[str, ...]:
        """The last lines that were written shortly before now."""
        since = time.monotonic() - RECENT_SECONDS
        with self._try_locked() as held:
            kept = b"".join(data for at, data in self._kept if at >= since) if held else b""
        # Progress bars end their lines with a carriage return.
        found = [line for line in re.split(r"[\r\n]+", kept.decode(errors="replace")) if line]
        return tuple(line[:LONGEST_LINE] for line in found[-MAX_LINES:])

    @contextlib.contextmanager
    def _try_locked(self) -> Iterator[bool]:
        """Hold the lock, unless the thread hangs in a stderr that nobody reads."""
        held = self._lock.acquire(timeout=_PATIENCE)
        try:
            yield held
        finally:
            if held:
                self._lock.release()

    def _run(self) -> None:
        waiting = select.poll()
        waiting.register(self._read_end, select.POLLIN)
        while not self._ended:
            waiting.poll()
            with self._lock:
                self._drain()
        os.close(self._read_end)

    def _drain(self) -> None:
        for _ in range(_MAX_READS):
            if self._ended:
                return
            try:
                data = os.read(self._read_end, _CHUNK)
            except BlockingIOError:
                return
            self._ended = not data
            self._pass_on(data)
            self._keep(data)

    def _keep(self, data: bytes) -> None:
        self._kept.append((time.monotonic(), data[-MAX_BYTES:]))
        self._size += min(len(data), MAX_BYTES)
        while self._size - len(self._kept[0][1]) >= MAX_BYTES:
            self._size -= len(self._kept.popleft()[1])

    def _pass_on(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[self._write(left) :]
        except OSError:
            return  # nobody reads it any more; the process must not be held up by that

    def _write(self, data: memoryview) -> int:
        try:
            return os.write(self._target, data)
        except BlockingIOError:  # whoever started us has made it so
            room = select.poll()
            room.register(self._target, select.POLLOUT)
            room.poll()
            return 0
