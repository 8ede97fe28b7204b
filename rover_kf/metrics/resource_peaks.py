# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What pods' training processes took at their worst, put together from what ranks report."""

from __future__ import annotations

import collections

from rover_kf.api.samples import StepReport
from rover_kf.metrics.memory_trend import MemorySeries


class ResourcePeaks:
    """One a coordinator; peaks only grow."""

    def __init__(self) -> None:
        self.memory = 0.0
        """Bytes that the trainer's container needs, mapped files among them, the worst pod's at the
        worst moment."""
        self.cores = 0.0
        self.series = MemorySeries()
        """What the worst pod takes of no file, over the time of this world: what may reach its
        limit."""
        self._nodes, self._world = 1, 1
        self._pods: dict[int, dict[int, StepReport]] = collections.defaultdict(dict)
        """By pod and rank, the newest."""
        self._memory_by_pod: dict[int, float] = {}
        """Bytes, by pod."""

    def begin(self, nodes: int, world_size: int) -> None:
        """A round begins: what ranks of the last one took is no part of it."""
        self._nodes, self._world = max(nodes, 1), max(world_size, 1)
        self._pods.clear()
        self._memory_by_pod.clear()
        self.series.begin()

    def on_report(self, report: StepReport, now: float = 0.0) -> None:
        """Take what a rank of the current round takes; now in Unix seconds."""
        pod = report.rank * self._nodes // self._world
        ranks = self._pods[pod]
        ranks[report.rank] = report
        memory = sum(one.memory for one in ranks.values())
        if memory:
            files = max(one.file_memory for one in ranks.values())
            self.memory = max(self.memory, float(memory + files))
            self._memory_by_pod[pod] = float(memory)
            if len(ranks) == max(self._world // self._nodes, 1):
                self.series.add(now, max(self._memory_by_pod.values()))
        self.cores = max(self.cores, sum(one.cores for one in ranks.values()))
