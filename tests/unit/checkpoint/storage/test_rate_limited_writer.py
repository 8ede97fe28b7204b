# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How long storage took of a write, without what the writer waited for its cap."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from rover_kf.checkpoint.storage.directory import DirectoryStorage
from rover_kf.checkpoint.storage.rank_content import SlotContent
from rover_kf.checkpoint.storage.rate_limit import RateLimitedWriter, RateLimiter
from tests.support.states import identities

SIZES = 1_000_000, 10
"""Of the first, half a burst is free at 2 MB/s; the rest waits a quarter of a second."""


class TakingTurns(DirectoryStorage):
    """Rank 1's write begins first and ends after rank 0's."""

    def __init__(self, root):
        super().__init__(root)
        self.begun, self.over = threading.Event(), threading.Event()

    def write_rank(self, folder, rank, content, length):
        if rank:
            self.begun.set()
            assert self.over.wait(60)
        return super().write_rank(folder, rank, content, length)


def test_a_writer_is_not_credited_with_what_another_waits(tmp_path):
    """One cap, two writers at once: the one that was held back leaves that out of its seconds, the
    one that waited for storage meanwhile does not."""
    storage = TakingTurns(tmp_path / "demo")
    writer, folder = (
        RateLimitedWriter(storage, RateLimiter(2_000_000)),
        storage.folder(identities.state(1)),
    )

    def write(rank: int) -> float:
        slot = tmp_path / f"slot-{rank}"
        slot.write_bytes(bytes(SIZES[rank]))
        content = SlotContent(slot, SIZES[rank], ((0, SIZES[rank]),))
        return writer.write_slot(folder, rank, content)[1]

    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(write, 1)
        assert storage.begun.wait(60)
        begun = time.monotonic()
        first = write(0)
        took = time.monotonic() - begun
        storage.over.set()
        assert first <= took - 0.24
        assert second.result(60) >= took
