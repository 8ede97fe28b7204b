# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Threads that do what they are lent, one torch thread each."""

from __future__ import annotations

import os
import queue
import threading

import torch

from rover_kf.trainer.work import Work

LOWER_PRIORITY = 5
"""As nice counts. Training comes first, but who waits for such a thread, or for the interpreter's
lock while it has it, must not wait for a thread that gets no core at all: 19 was seen to cost
hundreds of milliseconds on a busy machine."""


class Hands:
    """Some threads, started when first needed.

    Args:
        count: how many; 0 lends nothing.
        nice: as nice counts; above 0 they give way to the other threads.
    """

    def __init__(self, count: int, *, nice: int = 0) -> None:
        self._count, self._nice = count, nice
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def lend(self, work: Work) -> None:
        """Have every thread help with it; returns at once."""
        if not self._threads and self._count:
            self._start()
        for _ in self._threads:
            self._work.put(work)

    def close(self) -> None:
        """End the threads, after what they are at."""
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _start(self) -> None:
        threads = torch.get_num_threads()
        ready = threading.Barrier(self._count + 1)
        for index in range(self._count):
            # Daemons: an interpreter that ends must not wait for a thread that waits for work.
            thread = threading.Thread(
                target=self._run, args=(ready,), name=f"rover-copy-{index}", daemon=True
            )
            thread.start()
            self._threads.append(thread)
        ready.wait()
        # Theirs is one, and would be what threads that come later begin with.
        torch.set_num_threads(threads)

    def _run(self, ready: threading.Barrier) -> None:
        torch.set_num_threads(1)
        torch.get_num_threads()  # a thread's first use of the count would take the process's
        if self._nice:
            own = threading.get_native_id()
            # Training that was started with nice is lower already, and no way leads up again.
            lower = max(self._nice, os.getpriority(os.PRIO_PROCESS, own))
            os.setpriority(os.PRIO_PROCESS, own, lower)
        ready.wait()
        while (work := self._work.get()) is not None:
            work.help()
