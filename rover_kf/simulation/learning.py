# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a cluster's runs have shown of each program: production's windows and production's model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rover_kf.api.samples import Throughput
from rover_kf.metrics.windows import without_excess
from rover_kf.scaling import throughput
from rover_kf.scaling.case import UNKNOWN_WORK_SECONDS
from rover_kf.scaling.medians import WINDOWS_PER_WORLD
from rover_kf.scaling.step_law import FIXED_SHARE
from rover_kf.scaling.throughput import ThroughputModel
from rover_kf.simulation.cluster import FleetJob

NOISE = 0.03
"""Standard deviation of a window's step time, relative."""


class Learning:
    """Windows of runs alike (same model and batch), and the model that is fitted to them.

    Args:
        window_seconds: length of a window.
        seed: of the noise.
    """

    def __init__(self, window_seconds: float, seed: int) -> None:
        self._seconds = window_seconds
        self._noise = np.random.default_rng(seed)
        self._windows: dict[tuple[str, int], list[Throughput]] = {}
        self._models: dict[tuple[str, int], ThroughputModel] = {}

    def measure(self, job: FleetJob, now: float) -> None:
        """Take the window that ends now, if the job trained through it."""
        if not job.hosts or job.hold or job.waited:
            return
        key = (job.arrival.model, job.arrival.global_batch)
        known = self._windows.setdefault(key, [])
        nodes, ranks = len(job.hosts), job.replicas
        alike = sum(1 for w in known if (w.nodes, w.world_size) == (nodes, ranks))
        if alike >= WINDOWS_PER_WORLD:
            return
        seconds = job.step_seconds(job.placement)
        seconds *= max(0.5, 1 + NOISE * self._noise.standard_normal())
        batch = float(job.arrival.global_batch)
        window = Throughput(now - self._seconds, now, nodes, ranks, 1, 0, seconds, batch)
        self._windows[key] = without_excess([*known, window])
        self._models.pop(key, None)

    def rates(self, job: FleetJob, sizes: Sequence[int]) -> Mapping[int, float]:
        """Steps a second at each size up to twice the largest seen; at first up to one node."""
        key = (job.arrival.model, job.arrival.global_batch)
        model = self._models.get(key)
        if model is None and key in self._windows:
            model = throughput.fit(self._windows[key])
            if model is not None:
                self._models[key] = model
        if model is None:
            hope = job.steps_left / UNKNOWN_WORK_SECONDS
            first = [size for size in sizes if size <= job.table.per_host]
            return {k: hope / (FIXED_SHARE + (1 - FIXED_SHARE) / k) for k in first}
        largest = max(median.world_size for median in model.medians)
        reach = max(2 * largest, job.table.per_host, job.replicas)
        return {size: self._rate(model, job, size) for size in sizes if size <= reach}

    def _rate(self, model: ThroughputModel, job: FleetJob, size: int) -> float:
        nodes = len(job.table.packed(size))
        seen = [m.seconds for m in model.medians if (m.nodes, m.world_size) == (nodes, size)]
        batch = float(job.arrival.global_batch)
        return 1.0 / (
            seen[0] if seen else model.step_seconds(size, global_batch=batch, nodes=nodes)
        )
