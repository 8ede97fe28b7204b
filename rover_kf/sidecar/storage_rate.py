# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How fast storage is, of what the job has persisted: of each step the slowest pod's figure."""

from __future__ import annotations

from rover_kf.api.checkpoints import Durable

LEAST_BYTES = 8 << 20
"""A smaller file tells of how long storage takes to answer, not of how many bytes it takes."""
_REMEMBERED = 16
"""Steps; their median counts, so that one bad minute is not the storage."""


class StorageRate:
    """Of one job."""

    def __init__(self) -> None:
        self._slowest: dict[tuple[int, int], float] = {}

    @property
    def value(self) -> float:
        """Bytes a second; 0 as long as nothing of size was persisted."""
        found = sorted(self._slowest.values())
        return found[len(found) // 2] if found else 0.0

    def heard(self, durable: Durable) -> None:
        """A rank's file is on storage."""
        if durable.file_bytes < LEAST_BYTES or durable.storage_seconds <= 0:
            return
        key, rate = (durable.round, durable.step), durable.file_bytes / durable.storage_seconds
        self._slowest[key] = min(rate, self._slowest.get(key, rate))
        while len(self._slowest) > _REMEMBERED:
            del self._slowest[next(iter(self._slowest))]
