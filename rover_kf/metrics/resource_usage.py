# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What pods' training processes take: cores lately, how memory grows, and both at their worst.

The slope of memory is Theil and Sen's: the median over all pairs, so that single looks may be
wrong. Of the whole series and of its newer half the smaller one counts, so that growth that has
come to an end is none; and by the share of pairs that rise, what goes up and down again is told
from what grows.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import statistics
from collections.abc import Sequence

from rover_kf.api.faults.limit_raises import CpuCount, CpuUse, MemoryTrend, PodCpu
from rover_kf.api.samples import StepReport

MAX_COUNTS = 60
"""Counts that are kept, spread over the time that is told of."""
MAX_PODS = 8
"""That are told of."""


class CpuSeries:
    """The CPU counts of one container over the newest seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._counts: collections.deque[CpuCount] = collections.deque()

    def begin(self) -> None:
        """Its processes are new: what the former ones took says nothing of them."""
        self._counts.clear()

    def add(self, count: CpuCount | None) -> None:
        """Take a count; None: the container has no limit."""
        if count is None:
            self.begin()
            return
        kept = self._counts
        if kept and (count.limit != kept[-1].limit or count.used < kept[-1].used):
            self.begin()  # another limit, or another container
        if len(kept) > 1 and count.measured_at - kept[-2].measured_at < self._seconds / MAX_COUNTS:
            kept.pop()
        kept.append(count)
        while len(kept) > 1 and count.measured_at - kept[1].measured_at >= self._seconds:
            kept.popleft()

    def usage(self) -> CpuUse | None:
        """Over the time that is told of; None while less of it was seen."""
        if not self._counts:
            return None
        first, last = self._counts[0], self._counts[-1]
        spent = last.measured_at - first.measured_at
        if spent < self._seconds:
            return None
        throttled = (last.throttled - first.throttled) * last.period / spent
        cores = (last.used - first.used) / spent
        return CpuUse(cores, last.limit, min(throttled, 1.0), spent)


class PodCpuSeries:
    """The same of all pods of a world."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._pods: dict[str, CpuSeries] = {}

    def begin(self) -> None:
        """A round begins: its processes are new."""
        self._pods.clear()

    def add(self, pod: str, count: CpuCount | None) -> None:
        """Take a pod's count; None: it has no limit."""
        if count is None:
            self._pods.pop(pod, None)
            return
        self._pods.setdefault(pod, CpuSeries(self._seconds)).add(count)

    def usages(self) -> tuple[PodCpu, ...]:
        """Those held back most first."""
        told = ((pod, series.usage()) for pod, series in sorted(self._pods.items()))
        found = [PodCpu(pod, use) for pod, use in told if use is not None]
        return tuple(heapq.nlargest(MAX_PODS, found, key=lambda pod_cpu: pod_cpu.use.throttled))


MAX_SAMPLES = 60
"""Samples that are kept; beyond them every other one goes, and the distance doubles."""
MIN_SAMPLES = 20
"""Of which a trend may be told."""
EVERY_SECONDS = 2.0
NEWEST = 3
"""Whose median is what is taken now."""

Sample = tuple[float, float]
"""Unix seconds, bytes."""


class MemorySeries:
    """What a world's pods take, over the time of one world."""

    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._every = EVERY_SECONDS

    def begin(self) -> None:
        """Another world: its processes are new."""
        self._samples.clear()
        self._every = EVERY_SECONDS

    def add(self, timestamp: float, memory: float) -> None:
        """Take a sample, unless the last one is newer than the distance that is kept."""
        if self._samples and timestamp - self._samples[-1][0] < self._every:
            return
        self._samples.append((timestamp, memory))
        if len(self._samples) > MAX_SAMPLES:
            self._samples, self._every = self._samples[::2], 2 * self._every

    def trend(self) -> MemoryTrend | None:
        """The trend; None while there is too little to tell it."""
        if len(self._samples) < MIN_SAMPLES:
            return None
        slopes = _slopes(self._samples)
        newer = _slopes(self._samples[len(self._samples) // 2 :])
        now = statistics.median(memory for _, memory in self._samples[-NEWEST:])
        return MemoryTrend(
            memory=now,
            per_second=min(statistics.median(slopes), statistics.median(newer)),
            rising=sum(slope > 0 for slope in slopes) / len(slopes),
            seconds=self._samples[-1][0] - self._samples[0][0],
        )


def _slopes(samples: Sequence[Sample]) -> list[float]:
    return [
        (later[1] - sooner[1]) / (later[0] - sooner[0])
        for sooner, later in itertools.combinations(samples, 2)
    ]


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
