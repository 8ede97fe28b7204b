# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a round have read of the checkpoint that they restore from storage.

The coordinator compares names and sizes only: one process that reads the files of all ranks would
keep a large job waiting for hours. Each rank verifies the bytes that it reads, and none resumes
before all have. A separate module: the barrier decides who restores what, this one when it counts.
"""

from __future__ import annotations

from rover_kf.api.checkpoints import StorageRead, StorageReadReply


class StorageReads:
    """The reads of one state by the ranks of one round.

    Args:
        complete: whether an earlier coordinator has answered so.
    """

    def __init__(self, *, complete: bool = False) -> None:
        self.complete = complete
        self.ended = False
        """Another round has begun, or another state was chosen."""
        self.damage = ""
        self._bytes_of_rank: dict[int, int] = {}
        self._finished: set[int] = set()

    @property
    def read_bytes(self) -> int:
        """Of all ranks together."""
        return sum(self._bytes_of_rank.values())

    def add(self, report: StorageRead) -> None:
        """Take a rank's report."""
        self._bytes_of_rank[report.rank] = report.read_bytes
        if report.damage and not self.complete:
            self.damage = self.damage or f"rank {report.rank}: {report.damage}"
        if report.finished:
            self._finished.add(report.rank)

    def is_verified(self, world_size: int) -> bool:
        """Whether every rank has verified its part."""
        return not self.damage and len(self._finished) >= world_size

    def reply(self, world_size: int) -> StorageReadReply:
        """The answer to any rank, as of now."""
        missing = () if self.complete else sorted(set(range(world_size)) - self._finished)
        return StorageReadReply(self.complete, self.damage, self.read_bytes, tuple(missing))
