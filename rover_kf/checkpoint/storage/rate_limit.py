# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A cap on bytes a second that a persist or a replica may take from the network; a token bucket."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from rover_kf.checkpoint.format.manifest import Folder, RankFile
from rover_kf.checkpoint.storage.rank_content import SlotContent
from rover_kf.checkpoint.storage.storage_protocol import RankWriter


class CappedWriter:
    """A SlotWriter; methods as there.

    Args:
        writer: that does the work.
        cap: on its bytes.
    """

    def __init__(self, writer: RankWriter, cap: Cap) -> None:
        self._writer, self._cap = writer, cap

    def folder(self, step: int, generation: int) -> Folder:
        """Where that checkpoint is, or would be."""
        return self._writer.folder(step, generation)

    def write_slot(self, folder: Folder, rank: int, content: SlotContent) -> tuple[RankFile, float]:
        """Write a rank's file, safe when it returns."""
        begun, waits = time.monotonic(), Waits(self._cap, content.go_on)
        paced = waits.paced(content.pieces())
        file = self._writer.write_rank(folder, rank, paced, content.length)
        return file, max(time.monotonic() - begun - waits.seconds, 0.0)


BURST_SECONDS = 0.05


"""So much may come at once after a pause."""


_LOOK_SECONDS = 0.2


"""How long a writer waits until it asks whether it shall go on."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tokens:
    """What may be sent by now.

    Below zero: sent already and to be waited for. So a piece larger than a burst passes too.
    """

    rate: float
    """Bytes a second."""
    count: float
    """Bytes."""
    at: float
    """Seconds, monotonic."""


def full(rate: float, *, now: float) -> Tokens:
    """A bucket that nothing was taken from lately."""
    return Tokens(rate, rate * BURST_SECONDS, now)


def take(tokens: Tokens, count: int, *, now: float) -> tuple[Tokens, float]:
    """Send so many bytes.

    Args:
        tokens: as they were.
        count: bytes.
        now: seconds, monotonic.

    Returns:
        What is left, and the seconds to wait before the bytes are sent.
    """
    grown = tokens.count + max(now - tokens.at, 0.0) * tokens.rate
    left = min(grown, tokens.rate * BURST_SECONDS) - count
    return Tokens(tokens.rate, left, max(now, tokens.at)), max(-left / tokens.rate, 0.0)


class Cap:
    """Passes pieces on at no more than a rate; may be lifted while it is in use.

    Args:
        rate: bytes a second; 0 is no cap.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._tokens = full(rate, now=time.monotonic())
        self._lifted = threading.Event()
        self._lifters = 0
        self._turn = threading.Lock()

    @contextlib.contextmanager
    def lifted(self) -> Iterator[None]:
        """Let everything through at once meanwhile; to be entered from one thread only."""
        self._lifters += 1
        self._lifted.set()
        try:
            yield
        finally:
            self._lifters -= 1
            if not self._lifters:
                self._lifted.clear()

    def wait(self, count: int, go_on: Callable[[], None] = lambda: None) -> float:
        """Wait until so many bytes may be passed on; blocks.

        Args:
            count: bytes.
            go_on: called now and then; what it raises ends the wait.

        Returns:
            Seconds that it took.
        """
        begun = time.monotonic()
        until = begun + self.spend(count)
        while (left := until - time.monotonic()) > 0 and not self._lifted.wait(
            min(left, _LOOK_SECONDS)
        ):
            go_on()
        return time.monotonic() - begun

    def spend(self, count: int) -> float:
        """Count bytes that are to be passed on now; for whoever waits in a way of its own.

        Args:
            count: bytes.

        Returns:
            Seconds to wait before they are.
        """
        if not self._rate or self._lifted.is_set():
            return 0.0
        with self._turn:
            self._tokens, pause = take(self._tokens, count, now=time.monotonic())
        return pause


class Waits:
    """What one writer waits for a cap that others may share.

    Args:
        cap: on its bytes.
        go_on: called before each piece, and while it waits; what it raises ends the writing.
    """

    def __init__(self, cap: Cap, go_on: Callable[[], None] = lambda: None) -> None:
        self._cap, self._go_on = cap, go_on
        self.seconds = 0.0
        """So far."""

    def paced(self, content: Iterable[memoryview]) -> Iterator[memoryview]:
        """The same pieces, each when its time has come; blocks."""
        for piece in content:
            self.wait(len(piece))
            yield piece

    def wait(self, count: int) -> None:
        """Wait until so many bytes may be passed on; blocks."""
        self._go_on()
        self.seconds += self._cap.wait(count, self._go_on)
