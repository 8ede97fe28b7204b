# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Keys of jobs that want a look: each at most once in line, never looked at twice at a time.

Watches and resyncs add keys from any thread; workers run the reconciler. Level-triggered: a key
says that something may have changed, the reconciler reads what is there now.
"""

from __future__ import annotations

import heapq
import logging
import math
import threading
import time
from collections.abc import Callable

from rover_kf.api.jobs import JobKey

LOG = logging.getLogger(__name__)

FIRST_BACKOFF_SECONDS, LAST_BACKOFF_SECONDS = 1.0, 120.0
"""A look that failed is repeated after 1, 2, 4, … up to 120 s."""

POLL_SECONDS = 0.25
"""How late a worker hears that it shall stop."""

Reconcile = Callable[[JobKey], "float | None"]
"""Looks at one job; returns seconds until the next look, None to wait for a change."""


class KeyQueue:
    """A delaying queue of distinct keys with backoff; its clock is monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._due: dict[JobKey, float] = {}
        self._line: list[tuple[float, JobKey]] = []
        """A heap of what is due when; what ``_due`` does not say any more is passed over."""
        self._running: set[JobKey] = set()
        self._awaited = math.inf
        """When the worker wakes that waits for what is due next; the others sleep on."""
        self._failures: dict[JobKey, int] = {}

    def __len__(self) -> int:
        with self._changed:
            return len(self._due) + len(self._running)

    def add(self, key: JobKey, delay: float = 0.0) -> None:
        """Ask for a look at the key in ``delay`` seconds, or earlier if it is in line already.

        A key that is being looked at gets another look after this one.
        """
        with self._changed:
            self._put(key, self._clock() + delay)
            self._changed.notify()

    def add_missing(self, key: JobKey, delay: float = 0.0) -> None:
        """Ask for a look in ``delay`` seconds at a key that is not in line for any."""
        with self._changed:
            if key not in self._due and key not in self._running:
                self._put(key, self._clock() + delay)
                self._changed.notify()

    def run(self, reconcile: Reconcile, stop: threading.Event) -> None:
        """Look at keys as they fall due, until stop is set; call it in one thread a worker.

        An exception of the reconciler is logged with its traceback and the key is tried again.
        """
        while not stop.is_set():
            key = self._pop(stop)
            if key is not None:
                self._finish(key, self._reconcile(key, reconcile))

    def _reconcile(self, key: JobKey, reconcile: Reconcile) -> float | None:
        try:
            delay = reconcile(key)
        except Exception:  # the loop's top: one broken job must not stop the rest
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            wait = FIRST_BACKOFF_SECONDS * (1 << min(failures - 1, 10))
            LOG.exception("%s: failed %d times in a row", key, failures)
            return min(wait, LAST_BACKOFF_SECONDS)
        self._failures.pop(key, None)
        return delay

    def _put(self, key: JobKey, due: float) -> None:
        known = self._due.get(key)
        if known is None or due < known:
            self._due[key] = due
            if key not in self._running:
                heapq.heappush(self._line, (due, key))

    def _pop(self, stop: threading.Event) -> JobKey | None:
        """The next due key, marked as running; None when it is time to look at stop again."""
        with self._changed:
            while self._line and self._is_stale(*self._line[0]):
                heapq.heappop(self._line)
            now = self._clock()
            due = self._line[0][0] if self._line else now + 1.0
            if due > now:
                if not stop.is_set():
                    self._wait(now, due)
                return None
            key = heapq.heappop(self._line)[1]
            del self._due[key]
            self._running.add(key)
            self._changed.notify()  # somebody else waits for what is due after it
            return key

    def _wait(self, now: float, due: float) -> None:
        """Wait for a change; one worker no longer than until something is due."""
        # stop is an event of the caller's, so it is polled.
        if due >= self._awaited:
            self._changed.wait(POLL_SECONDS)
            return
        self._awaited = due
        self._changed.wait(min(due - now, POLL_SECONDS))
        self._awaited = math.inf

    def _is_stale(self, due: float, key: JobKey) -> bool:
        """Whether that place in line counts no more: the key has an earlier one, or is at work."""
        return self._due.get(key) != due or key in self._running

    def _finish(self, key: JobKey, delay: float | None) -> None:
        with self._changed:
            self._running.discard(key)
            if key in self._due:  # it was asked for meanwhile
                heapq.heappush(self._line, (self._due[key], key))
            self._changed.notify()
        if delay is not None:
            self.add(key, delay)
