# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a container made of its cores lately: the difference of two of the kernel's counts."""

from __future__ import annotations

import collections
import heapq

from rover_kf.api.faults.limit_raises import CpuCount, CpuUse, PodCpu

MAX_COUNTS = 60
"""Counts that are kept, spread over the time that is told of."""
MAX_PODS = 8
"""That are told of."""


class CpuSeries:
    """One a container.

    Args:
        seconds: that are told of.
    """

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
    """The same of all pods of a world.

    Args:
        seconds: that are told of.
    """

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
