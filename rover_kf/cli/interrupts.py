# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and SIGTERM as a request that is read, not as an exception in the middle of anything."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Notes the first signal while the block runs; raises SystemExit at the second one.

    An exception raised by a signal may fall between taking a lock and knowing of it, and whoever
    cleans up after it would wait for that lock for ever.
    """

    def __init__(self) -> None:
        self.code = 0
        """Exit code of the signal that came: 128 and its number; 0 if none did."""
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interrupts:  # noqa: PYI034 - Self needs Python 3.11
        for number in _SIGNALS:
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

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.code:
            raise SystemExit(self.code)
        self.code = 128 + number
