# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A piece of work cut into small ones, which any number of threads take until none is left.

Whoever needs the result helps: a thread of low priority that gets no core then delays nobody by
more than the one piece that it holds. What interrupts a thread (Ctrl-C, ``sys.exit``) is no failure
of the work: the thread hears of it, and the piece is begun anew.
"""

from __future__ import annotations

import collections
import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator

import torch

LOWER_PRIORITY = 5
"""As nice counts. Training comes first, but who waits for such a thread, or for the interpreter's
lock while it has it, must not wait for a thread that gets no core at all: 19 was seen to cost
hundreds of milliseconds on a busy machine."""


class CopyThreads:
    """Some threads, started when first needed.

    Args:
        count: how many; 0 lends nothing.
        nice: as nice counts; above 0 they give way to the other threads.
    """

    def __init__(self, count: int, *, nice: int = 0) -> None:
        self._count, self._nice = count, nice
        self._queue: queue.SimpleQueue[SharedWork | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, work: SharedWork) -> None:
        """Have every thread help with it; returns at once."""
        if not self._threads and self._count:
            self._start()
        for _ in self._threads:
            self._queue.put(work)

    def close(self) -> None:
        """End the threads, after what they are at."""
        for _ in self._threads:
            self._queue.put(None)
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
        while (work := self._queue.get()) is not None:
            work.help()


@contextlib.contextmanager
def one_torch_thread() -> Iterator[None]:
    """For who is one of several threads that copy."""
    threads = torch.get_num_threads()
    if threads != 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if threads != 1:
            torch.set_num_threads(threads)


class SharedWork:
    """Done when every piece is, and the ending after them.

    Args:
        pieces: independent of one another; one that was interrupted is called again.
        on_done: run once, after the last piece, told whether one of them failed.
    """

    def __init__(
        self,
        pieces: Iterable[Callable[[], None]],
        on_done: Callable[[BaseException | None], None] | None = None,
    ) -> None:
        self._pieces = collections.deque(pieces)
        self._left = len(self._pieces)
        self._on_done = on_done
        self._process = os.getpid()
        self._changed = threading.Condition()
        """It is done, or there is a piece again where there was none."""
        self._done = False
        self.error: BaseException | None = None
        """What went wrong, once it is done."""
        if not self._left:
            self._end()

    @property
    def is_done(self) -> bool:
        """Whether nothing is left and nobody is at it."""
        return self._done

    def help(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Take pieces until none is left; others may still be at theirs.

        Args:
            is_over: asked before each piece; whoever is told so leaves the rest.

        Raises:
            BaseException: what interrupted this thread; the piece is left to others.
        """
        while not is_over():
            try:
                piece = self._pieces.popleft()
            except IndexError:
                return
            try:
                piece()
            except Exception as error:  # noqa: BLE001 - kept for who waits for the work
                self.error = error
                self._record_done(1 + self._discard_pieces())
            except BaseException:
                with self._changed:
                    self._pieces.appendleft(piece)
                    self._changed.notify_all()
                raise
            else:
                self._record_done(1)

    def wait(self) -> None:
        """Help with one torch thread, then wait for who else is at a piece.

        A forked child returns at once: the work is its parent's, whose threads it does not have.

        Raises:
            BaseException: what interrupted this thread, or the ending; told once. Unless it was the
                ending, the work goes on, and can be waited for again.
        """
        if os.getpid() != self._process:
            return
        while not self._done:
            with one_torch_thread():
                self.help()
            with self._changed:
                self._changed.wait_for(lambda: self._done or self._pieces)
        if self.error is not None and not isinstance(self.error, Exception):
            interrupt, self.error = self.error, None
            raise interrupt

    def cancel(self) -> None:
        """Begin no further piece, and wait for who is at one."""
        given_up = self._discard_pieces()
        if given_up:
            self._record_done(given_up)
        with self._changed:
            self._changed.wait_for(lambda: self._done)

    def _discard_pieces(self) -> int:
        count = 0
        with contextlib.suppress(IndexError):
            while True:
                self._pieces.popleft()
                count += 1
        return count

    def _record_done(self, count: int) -> None:
        with self._changed:
            self._left -= count
            last = self._left == 0
        if last:
            self._end()

    def _end(self) -> None:
        try:
            if self._on_done is not None:
                self._on_done(self.error)
        except BaseException as error:  # noqa: BLE001 - kept for who waits for the work
            self.error = error
        finally:
            with self._changed:
                self._done = True
                self._changed.notify_all()
