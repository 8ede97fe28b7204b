# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What earlier checks of other jobs showed, as far as it helps to judge one; pure."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping

from rover_kf.api.faults.node_check_messages import NodeCheckReport, PairMeasurement

FRESH_SECONDS = 86400.0
"""How old a pair may be that still tells about its nodes."""
MIN_PODS = 3
"""Pods whose figures make something usual."""


@dataclasses.dataclass(frozen=True, slots=True)
class FleetBaselines:
    """Usual figures, and what happened between nodes of late."""

    matmul_seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Usual seconds by device."""
    all_reduce_seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    pairs: tuple[PairMeasurement, ...] = ()
    """By names of nodes."""


def collect_baselines(checks: Iterable[NodeCheckReport], now: float) -> FleetBaselines:
    """The fleet as those checks show it.

    Args:
        checks: of any jobs.
        now: Unix seconds.
    """
    alone: dict[str, list[float]] = {}
    together: dict[str, list[float]] = {}
    recent: list[PairMeasurement] = []
    for check in checks:
        places = {pod.pod: pod for pod in check.pods}
        for pod in check.pods:
            if pod.matmul_seconds is not None:
                alone.setdefault(pod.device, []).append(pod.matmul_seconds)
        for pair in check.pairs:
            if pair.first not in places or pair.second not in places:
                continue
            one, other = places[pair.first], places[pair.second]
            if pair.seconds is not None and one.device == other.device:
                together.setdefault(one.device, []).append(pair.seconds)
            if one.node and other.node and now - check.at <= FRESH_SECONDS:
                recent.append(dataclasses.replace(pair, first=one.node, second=other.node))
    return FleetBaselines(_medians(alone), _medians(together), tuple(recent))


def _medians(figures: Mapping[str, list[float]]) -> dict[str, float]:
    return {
        device: statistics.median(seconds)
        for device, seconds in figures.items()
        if len(seconds) >= MIN_PODS
    }
