# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""SIGTERM and SIGINT as a request that is read, not as an exception in the middle of anything.

A handler that raises may strike between any two instructions: between taking a lock and recording
that it is held, so that the clean-up waits for that lock for ever. A handler that records the
signal alone is not read before a pause ends; here the signal ends the pause.
"""

from __future__ import annotations

import select
import signal
import socket
from types import FrameType, TracebackType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """A block of the main thread in which signals to stop are recorded.

    Args:
        exit_on_second: raise SystemExit at a second signal, for people who press Ctrl-C twice.
    """

    def __init__(self, *, exit_on_second: bool = False) -> None:
        self.signal = ""
        """Name of the first signal; empty if none came."""
        self.code = 0
        """Exit code of the first signal: 128 and its number; 0 if none came."""
        self._exit_on_second = exit_on_second
        self._reader, self._writer = socket.socketpair()
        self._handlers: dict[int, object] = {}
        self._wakeup = -1

    def __enter__(self) -> StopSignals:  # noqa: PYI034 - Self needs Python 3.11
        self._writer.settimeout(0)
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in SIGNALS:
            self._handlers[number] = signal.signal(number, self._record)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type] # as signal returned it
        signal.set_wakeup_fd(self._wakeup)
        self._reader.close()
        self._writer.close()

    def wait(self, seconds: float) -> bool:
        """Pause; True as soon as a signal to stop has come."""
        if not self.signal and select.select([self._reader], [], [], seconds)[0]:
            self._reader.recv(64)  # the next pause after another signal is a whole one
        return bool(self.signal)

    def _record(self, number: int, _frame: FrameType | None) -> None:
        if self.code and self._exit_on_second:
            raise SystemExit(self.code)
        self.signal = self.signal or signal.Signals(number).name
        self.code = self.code or 128 + number
