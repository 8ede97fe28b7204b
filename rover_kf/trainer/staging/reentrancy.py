# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Calls that a signal's handler must not make while the thread that it interrupts is in one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from rover_kf import errors


class ReentrancyGuard:
    """Which threads are in such a call.

    What a handler would wait for goes on only after the handler: its thread holds a piece of the
    copy, or the slot's lock.
    """

    def __init__(self) -> None:
        self._inside: set[int] = set()

    def check(self) -> None:
        """Refuse a call from within another one.

        Raises:
            CheckpointError: this thread is in one.
        """
        if threading.get_ident() in self._inside:
            raise errors.CheckpointError(
                "a signal handler called the Checkpointer in the middle of a copy, which goes on "
                "only after the handler; set a flag there, and save after the step"
            )

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """While the thread is in a call.

        Raises:
            CheckpointError: it is in one already.
        """
        self.check()
        try:
            self._inside.add(threading.get_ident())
            yield
        finally:
            self._inside.discard(threading.get_ident())
