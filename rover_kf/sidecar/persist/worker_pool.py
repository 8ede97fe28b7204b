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
from rover_kf.sidecar.persist.worker_process import Silent, StorageChild

CLOSING_SECONDS = 3.0
"""For what is under way when the sidecar ends, a retention for one."""
ENDING_SECONDS = 1.0
"""For processes that were killed; one that the kernel holds is left behind."""
HELD_SECONDS = 5.0
"""After which one that was killed, but not for its silence, counts as held by the kernel."""
SPARE_SECONDS = 10.0
"""That a process waits for a call beside another one that does: each has 9 MiB of memory."""
_LOOK_SECONDS = 0.01
_MOST_STUCK = 2
_WRITING = frozenset({"write_rank", "write_manifest"})
"""Calls that do not return where nothing can be written."""

Answer = tuple[dict[str, Any], bytes]


class StorageChildren:
    """Of one folder.

    Args:
        root: the job's folder.
    """

    def __init__(self, root: pathlib.Path) -> None:
        self._root = root
        self._lock = threading.Condition()
        self._idle: list[StorageChild] = []
        self._busy: set[StorageChild] = set()
        self._killed: dict[StorageChild, float] = {}
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
                self._end(child)
            self._idle.clear()
        deadline = time.monotonic() + ENDING_SECONDS
        while self._left() and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)

    @contextlib.contextmanager
    def one(self) -> Iterator[StorageChild]:
        """A process for a call and what follows from it.

        Raises:
            StorageFailed: there is none to be had, or the folder hangs.
        """
        child = self._take()
        try:
            if not child.free:
                self._start(child)
            yield child
        finally:
            self._put_back(child)

    def ask(
        self,
        child: StorageChild,
        words: dict[str, Any],
        blob: bytes,
        patience: float,
        on_next: Callable[[int], None] = lambda _: None,
    ) -> Answer:
        """Ask a process, as StorageChild.ask does.

        Raises:
            StorageFailed: the folder hangs, or refused.
            TornSnapshot: the process told so.
        """
        writes = words.get("call") in _WRITING
        found, content = self._hear(
            child, lambda: child.ask(words, blob, patience, on_next=on_next), writes=writes
        )
        if writes or not self._writes_hang:
            self._silent_since, self._writes_hang = None, False
        if "error" in found:
            body = error_wire.to_bytes(found["error"], found["message"])
            raise error_wire.from_bytes(0, body, unreadable=errors.StorageFailed)
        return found, content

    def _start(self, child: StorageChild) -> None:
        try:
            child.wait_ready()
        except Silent as silent:
            message = f"the process that asks {self._root} did not start; see the sidecar's log"
            raise errors.StorageFailed(message) from silent

    def _hear(self, child: StorageChild, ask: Callable[[], Answer], *, writes: bool) -> Answer:
        try:
            return ask()
        except Silent as silent:
            if self._closed or child.failed:
                how = child.failed or "with the sidecar"
                message = f"the process that asks {self._root} has ended {how}"
                raise errors.StorageFailed(message) from silent
            with self._lock:
                self._silent_since = self._silent_since or child.heard_at
                self._writes_hang |= writes
                self._end(child, held_seconds=0.0)
            raise self._hangs() from silent

    def _hangs(self) -> errors.StorageFailed:
        return errors.StorageFailed(
            f"{self._root} hangs: no answer for {self.silent_seconds:.0f} s; look at the volume's "
            "server"
        )

    def _left(self) -> int:
        """Processes that have not ended yet."""
        with self._lock:
            self._killed = {
                child: since for child, since in self._killed.items() if not child.gone()
            }
            return len(self._busy | self._killed.keys())

    def _take(self) -> StorageChild:
        self._left()
        with self._lock:
            if self._closed:
                raise errors.StorageFailed("the sidecar ends")
            now = time.monotonic()
            stuck = [since for since in self._killed.values() if since <= now]
            if len(stuck) >= _MOST_STUCK:
                self._silent_since = self._silent_since or min(stuck)
                raise self._hangs()
            while self._idle:
                child = self._idle.pop()
                if not child.gone():
                    break
            else:
                child = StorageChild(self._root)
            self._busy.add(child)
            return child

    def _put_back(self, child: StorageChild) -> None:
        with self._lock:
            self._busy.discard(child)
            self._lock.notify_all()
            if child.free and not self._closed:
                self._idle.append(child)
                self._end_spares()
            elif child not in self._killed:
                self._end(child)

    def _end_spares(self) -> None:
        now = time.monotonic()
        spares = [one for one in self._idle[:-1] if now - one.heard_at >= SPARE_SECONDS]
        for child in spares:
            self._idle.remove(child)
            self._end(child)

    def _end(self, child: StorageChild, *, held_seconds: float | None = None) -> None:
        """Kill it; so many seconds later it is stuck, if it is not gone."""
        child.give_up()
        patience = HELD_SECONDS if held_seconds is None else held_seconds
        self._killed.setdefault(child, time.monotonic() + patience)
