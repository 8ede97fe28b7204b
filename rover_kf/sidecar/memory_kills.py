# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Kills for memory that launchers told the coordinator of, kept for a controller to fetch."""

from __future__ import annotations

import collections

from rover_kf.api.membership import Failure
from rover_kf.api.memory import MemoryKill
from rover_kf.elastic.failures.rule import RAISE_MEMORY

MOST_KILLS = 8
"""The newest: one at the present limit is all that a controller needs of a replica type."""


class MemoryKills:
    """One a coordinator. Of a pod the last kill is kept."""

    def __init__(self) -> None:
        self._kept: collections.OrderedDict[str, MemoryKill] = collections.OrderedDict()

    def heard(self, failure: Failure) -> None:
        """A launcher told of a process that has died, for whatever reason."""
        if failure.action != RAISE_MEMORY:
            return
        self._kept.pop(failure.pod, None)
        self._kept[failure.pod] = MemoryKill(failure.pod, failure.at, failure.memory_limit)
        while len(self._kept) > MOST_KILLS:
            self._kept.popitem(last=False)

    def all(self) -> tuple[MemoryKill, ...]:
        """Oldest first."""
        return tuple(self._kept.values())
