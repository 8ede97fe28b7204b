# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The storage processes of a sidecar: one for each call at a time, and whether their folder hangs.

A call waits for a word of its process for so long; then the process is killed and the call is
refused. What the kernel does not let go of is left behind, and while two processes cannot be ended
calls are refused at once. The next call that is answered ends it. Processes that have answered wait
for further calls, those beside the first one for some seconds.
"""

from __future__ import annotations

import contextlib
import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from rover_kf import errors
from rover_kf.api import error_wire
from rover_kf.sidecar.persist.worker_process import StorageWorker, WorkerUnresponsive

CLOSING_SECONDS = 3.0
"""For what is under way when the sidecar ends, a retention for one."""
ENDING_SECONDS = 1.0
"""For processes that were killed; one that the kernel holds is left behind."""
HELD_SECONDS = 5.0
"""After which one that was killed, but not for its silence, counts as held by the kernel."""
SPARE_SECONDS = 10.0
"""That a process waits for a call beside another one that does: each has 9 MiB of memory."""
_POLL_SECONDS = 0.01
_MAX_STUCK = 2
_WRITING = frozenset({"write_rank", "write_manifest"})
"""Calls that do not return where nothing can be written."""

Answer = tuple[dict[str, Any], bytes]


class StorageWorkerPool:
    """Of one folder.

    Args:
        root: the job's folder.
    """

    def __init__(self, root: pathlib.Path) -> None:
        self._root = root
        self._lock = threading.Condition()
        self._idle: list[StorageWorker] = []
        self._busy: set[StorageWorker] = set()
        self._killed: dict[StorageWorker, float] = {}
        """Not gone yet, and the monotonic seconds from which each counts as stuck."""
        self._silent_since: float | None = None
        self._writes_hang = False
        """What is silent is a writer: a disk that lets no write return may be read."""
        self._closed = False

    @property
    def silent_seconds(self) -> float:
        """How long the folder has hung; 0: it answers, as far as is known."""
        since = self._silent_since
        return 0.0 if since is None else time.monotonic() - since

    def close(self) -> None:
        """End the processes once what they do is done, or soon; then every call is an error."""
        with self._lock:
            self._closed = True
            patient = self._silent_since is None
            self._lock.wait_for(lambda: not self._busy, CLOSING_SECONDS if patient else 0.0)
            for child in (*self._idle, *self._busy):
                self._kill(child)
            self._idle.clear()
        deadline = time.monotonic() + ENDING_SECONDS
        while self._reap() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    @contextlib.contextmanager
    def acquire(self) -> Iterator[StorageWorker]:
        """A process for a call and what follows from it.

        Raises:
            StorageError: there is none to be had, or the folder hangs.
        """
        child = self._pick()
        try:
            if not child.is_idle:
                self._start(child)
            yield child
        finally:
            self._release(child)

    def request(
        self,
        worker: StorageWorker,
        words: dict[str, Any],
        blob: bytes,
        timeout: float,
        on_next: Callable[[int], None] = lambda _: None,
    ) -> Answer:
        """Ask a process, as StorageWorker.ask does.

        Raises:
            StorageError: the folder hangs, or refused.
            CorruptSnapshot: the process told so.
        """
        writes = words.get("call") in _WRITING
        found, content = self._receive(
            worker, lambda: worker.request(words, blob, timeout, on_next=on_next), writes=writes
        )
        if writes or not self._writes_hang:
            self._silent_since, self._writes_hang = None, False
        if "error" in found:
            body = error_wire.encode_error(found["error"], found["message"])
            raise error_wire.decode_error(0, body, unreadable=errors.StorageError)
        return found, content

    def _start(self, worker: StorageWorker) -> None:
        try:
            worker.wait_ready()
        except WorkerUnresponsive as silent:
            message = f"the process that asks {self._root} did not start; see the sidecar's log"
            raise errors.StorageError(message) from silent

    def _receive(
        self, worker: StorageWorker, request: Callable[[], Answer], *, writes: bool
    ) -> Answer:
        try:
            return request()
        except WorkerUnresponsive as silent:
            if self._closed or worker.exit_reason:
                how = worker.exit_reason or "with the sidecar"
                message = f"the process that asks {self._root} has ended {how}"
                raise errors.StorageError(message) from silent
            with self._lock:
                self._silent_since = self._silent_since or worker.active_at
                self._writes_hang |= writes
                self._kill(worker, held_seconds=0.0)
            raise self._unresponsive_error() from silent

    def _unresponsive_error(self) -> errors.StorageError:
        return errors.StorageError(
            f"{self._root} hangs: no answer for {self.silent_seconds:.0f} s; look at the volume's "
            "server"
        )

    def _reap(self) -> int:
        """Processes that have not ended yet."""
        with self._lock:
            self._killed = {
                child: since for child, since in self._killed.items() if not child.has_exited()
            }
            return len(self._busy | self._killed.keys())

    def _pick(self) -> StorageWorker:
        self._reap()
        with self._lock:
            if self._closed:
                raise errors.StorageError("the sidecar ends")
            now = time.monotonic()
            stuck = [since for since in self._killed.values() if since <= now]
            if len(stuck) >= _MAX_STUCK:
                self._silent_since = self._silent_since or min(stuck)
                raise self._unresponsive_error()
            while self._idle:
                child = self._idle.pop()
                if not child.has_exited():
                    break
            else:
                child = StorageWorker(self._root)
            self._busy.add(child)
            return child

    def _release(self, worker: StorageWorker) -> None:
        with self._lock:
            self._busy.discard(worker)
            self._lock.notify_all()
            if worker.is_idle and not self._closed:
                self._idle.append(worker)
                self._kill_spares()
            elif worker not in self._killed:
                self._kill(worker)

    def _kill_spares(self) -> None:
        now = time.monotonic()
        spares = [one for one in self._idle[:-1] if now - one.active_at >= SPARE_SECONDS]
        for child in spares:
            self._idle.remove(child)
            self._kill(child)

    def _kill(self, worker: StorageWorker, *, held_seconds: float | None = None) -> None:
        """Kill it; so many seconds later it is stuck, if it is not gone."""
        worker.kill()
        patience = HELD_SECONDS if held_seconds is None else held_seconds
        self._killed.setdefault(worker, time.monotonic() + patience)
