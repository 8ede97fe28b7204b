# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A process that gets less of its machine's time than others: stopped and continued in turn."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

_PERIOD = 1.0


@contextlib.contextmanager
def slowed(pid: int, share: float) -> Iterator[None]:
    """For the length of the block.

    Args:
        pid: of the process.
        share: of the time in which it may run, between 0 and 1.
    """
    over = threading.Event()

    def hold() -> None:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            over.wait(_PERIOD * (1 - share))
            os.kill(pid, signal.SIGCONT)
            over.wait(_PERIOD * share)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
