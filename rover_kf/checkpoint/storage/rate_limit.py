# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A cap on bytes a second that a persist or a replica may take from the network; a token bucket."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from rover_kf.api.states import State
from rover_kf.checkpoint.format.manifest import CheckpointFolder, RankFile
from rover_kf.checkpoint.storage.rank_content import SlotContent
from rover_kf.checkpoint.storage.storage_protocol import RankWriter


class RateLimitedWriter:
    """A SlotFileWriter; methods as there.

    Args:
        writer: that does the work.
        limiter: on its bytes.
    """

    def __init__(self, writer: RankWriter, limiter: RateLimiter) -> None:
        self._writer, self._limiter = writer, limiter

    def folder(self, state: State) -> CheckpointFolder:
        """Where that checkpoint is, or would be."""
        return self._writer.folder(state)

    def write_slot(
        self, folder: CheckpointFolder, rank: int, content: SlotContent
    ) -> tuple[RankFile, float]:
        """Write a rank's file, safe when it returns."""
        begun, waits = time.monotonic(), WaitClock(self._limiter, content.check_cancelled)
        paced = waits.throttle(content.chunks())
        file = self._writer.write_rank(folder, rank, paced, content.length)
        return file, max(time.monotonic() - begun - waits.seconds, 0.0)


BURST_SECONDS = 0.05
"""So much may come at once after a pause."""


_POLL_SECONDS = 0.2
"""How long a writer waits until it asks whether it shall go on."""


@dataclasses.dataclass(frozen=True, slots=True)
class TokenBucket:
    """What may be sent by now.

    Below zero: sent already and to be waited for. So a piece larger than a burst passes too.
    """

    rate: float
    """Bytes a second."""
    count: float
    """Bytes."""
    updated_at: float
    """Seconds, monotonic."""


def full_bucket(rate: float, *, now: float) -> TokenBucket:
    """A bucket that nothing was taken from lately."""
    return TokenBucket(rate, rate * BURST_SECONDS, now)


def consume(tokens: TokenBucket, count: int, *, now: float) -> tuple[TokenBucket, float]:
    """Send so many bytes.

    Args:
        tokens: as they were.
        count: bytes.
        now: seconds, monotonic.

    Returns:
        What is left, and the seconds to wait before the bytes are sent.
    """
    grown = tokens.count + max(now - tokens.updated_at, 0.0) * tokens.rate
    left = min(grown, tokens.rate * BURST_SECONDS) - count
    return TokenBucket(tokens.rate, left, max(now, tokens.updated_at)), max(
        -left / tokens.rate, 0.0
    )


class RateLimiter:
    """Passes pieces on at no more than a rate; may be lifted while it is in use.

    Args:
        rate: bytes a second; 0 is no cap.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._tokens = full_bucket(rate, now=time.monotonic())
        self._lifted = threading.Event()
        self._lifters = 0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def unlimited(self) -> Iterator[None]:
        """Let everything through at once meanwhile; to be entered from one thread only."""
        self._lifters += 1
        self._lifted.set()
        try:
            yield
        finally:
            self._lifters -= 1
            if not self._lifters:
                self._lifted.clear()

    def wait(self, count: int, check_cancelled: Callable[[], None] = lambda: None) -> float:
        """Wait until so many bytes may be passed on; blocks.

        Args:
            count: bytes.
            check_cancelled: called now and then; what it raises ends the wait.

        Returns:
            Seconds that it took.
        """
        begun = time.monotonic()
        until = begun + self.reserve(count)
        while (left := until - time.monotonic()) > 0 and not self._lifted.wait(
            min(left, _POLL_SECONDS)
        ):
            check_cancelled()
        return time.monotonic() - begun

    def reserve(self, count: int) -> float:
        """Count bytes that are to be passed on now; for whoever waits in a way of its own.

        Args:
            count: bytes.

        Returns:
            Seconds to wait before they are.
        """
        if not self._rate or self._lifted.is_set():
            return 0.0
        with self._lock:
            self._tokens, pause = consume(self._tokens, count, now=time.monotonic())
        return pause


class WaitClock:
    """What one writer waits for a cap that others may share.

    Args:
        limiter: on its bytes.
        check_cancelled: called before each piece, and while it waits; what it raises ends the
            writing.
    """

    def __init__(
        self, limiter: RateLimiter, check_cancelled: Callable[[], None] = lambda: None
    ) -> None:
        self._limiter, self._check_cancelled = limiter, check_cancelled
        self.seconds = 0.0
        """So far."""

    def throttle(self, content: Iterable[memoryview]) -> Iterator[memoryview]:
        """The same pieces, each when its time has come; blocks."""
        for piece in content:
            self.wait(len(piece))
            yield piece

    def wait(self, count: int) -> None:
        """Wait until so many bytes may be passed on; blocks."""
        self._check_cancelled()
        self.seconds += self._limiter.wait(count, self._check_cancelled)
