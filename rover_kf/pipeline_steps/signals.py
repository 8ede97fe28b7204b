# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""SIGTERM and SIGINT as something that a step waits for beside its job.

A handler that raises may strike between any two instructions; one that notes only is not read
before a pause ends. A step that is stopped may have seconds left: the signal ends its pause.
"""

from __future__ import annotations

import select
import signal
import socket
from types import FrameType, TracebackType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopping:
    """While the block runs, signals to stop are noted; used in the main thread."""

    def __init__(self) -> None:
        self.signal = ""
        """Name of the first one that came; empty if none did."""
        self._ours, self._theirs = socket.socketpair()
        self._before: dict[int, object] = {}
        self._wakeup = -1

    def __enter__(self) -> Stopping:  # noqa: PYI034 - Self needs Python 3.11
        self._theirs.settimeout(0)
        self._wakeup = signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type] # as signal gave it
        signal.set_wakeup_fd(self._wakeup)
        self._ours.close()
        self._theirs.close()

    def wait(self, seconds: float) -> bool:
        """Pause; True as soon as a signal to stop has come."""
        if not self.signal and select.select([self._ours], [], [], seconds)[0]:
            self._ours.recv(64)  # of another signal, the next pause is a whole one
        return bool(self.signal)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.signal = self.signal or signal.Signals(number).name
