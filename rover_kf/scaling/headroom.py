# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How many more pods of a job there is room for, and what the room ends at; pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from rover_kf.api.cluster_capacity import (
    Amounts,
    ClusterCapacity,
    NodeCapacity,
    PodRequirements,
    QuotaHeadroom,
    Taint,
)

NODES = "nodes"
_PODS = ("pods", "count/pods")
_KEEPS_AWAY = ("NoSchedule", "NoExecute")
_PLAIN = ("cpu", "memory", "ephemeral-storage")
"""Resources that a quota may name without ``requests.``."""
_ROUNDING = 1e-6
MIB = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class PodHeadroom:
    """Pods that may be added."""

    count: float
    """Infinite where nothing is known to end it."""
    reason: str = ""
    """What it ends at, by name; empty where nothing does."""
    bound: str = ""
    """The same as one word: NODES, or what ``quota_bound`` calls a quota."""


def quota_bound(name: str) -> str:
    """What a quota is called as a bound."""
    return f"quota {name}"


def pod_headroom(requirements: PodRequirements, capacity: ClusterCapacity) -> PodHeadroom:
    """How many more pods there is room for, now, by the tightest bound."""
    bounds = [quota_headroom(requirements, quota) for quota in capacity.quotas]
    if capacity.nodes is not None:
        bounds.append(node_headroom(requirements, capacity.nodes))
    return min(bounds, key=lambda bound: bound.count, default=PodHeadroom(math.inf))


def quota_headroom(requirements: PodRequirements, quota: QuotaHeadroom) -> PodHeadroom:
    """How many more pods a quota lets be made."""
    counts = [
        (_count_fitting(left, asked), key)
        for key, left in quota.remaining.items()
        if (asked := quota_usage(requirements, key)) > 0
    ]
    count, key = min(counts, default=(math.inf, ""))
    left = quota.remaining.get(key, 0.0)
    why = (
        f"ResourceQuota {quota.name} leaves {_amount(left)} of {key}, and a pod asks for "
        f"{_amount(quota_usage(requirements, key))}"
    )
    return PodHeadroom(count, why, quota_bound(quota.name)) if key else PodHeadroom(count)


def node_headroom(requirements: PodRequirements, nodes: Iterable[NodeCapacity]) -> PodHeadroom:
    """How many more pods the nodes take, each pod whole on one node."""
    count = sum(pods_fitting(requirements, node) for node in nodes)
    asked = ", ".join(
        f"{key} {_amount(value)}" for key, value in requirements.requests.items() if value
    )
    why = f"nodes have room for {count} more of its pods ({asked or 'no requests'})"
    return PodHeadroom(count, why, NODES)


def pods_fitting(
    requirements: PodRequirements, node: NodeCapacity, extra: Amounts | None = None
) -> int:
    """Return how many of those pods go on a node with what is left of it, and the extra."""
    if not accepts_pod(requirements, node):
        return 0
    given = extra or {}
    asked = {"pods": 1.0, **{key: value for key, value in requirements.requests.items() if value}}
    return min(
        _count_fitting(node.free.get(key, 0.0) + given.get(key, 0.0), value)
        for key, value in asked.items()
    )


def accepts_pod(requirements: PodRequirements, node: NodeCapacity) -> bool:
    """Whether the pod may go to the node at all."""
    labelled = all(node.labels.get(key) == value for key, value in requirements.selector.items())
    barred = any(
        taint.effect in _KEEPS_AWAY and not _tolerates(requirements, taint) for taint in node.taints
    )
    return labelled and not barred and node.name not in requirements.excluded_nodes


def _tolerates(need: PodRequirements, taint: Taint) -> bool:
    return any(
        key in ("", taint.key) and value in ("", taint.value) and effect in ("", taint.effect)
        for key, value, effect in need.tolerations
    )


def quota_usage(requirements: PodRequirements, key: str) -> float:
    """What one pod counts for a key of a quota."""
    if key in _PODS:
        return 1.0
    kind, _, name = key.partition(".")
    if kind == "limits":
        return requirements.limits.get(name, 0.0)
    if kind == "requests":
        return requirements.requests.get(name, 0.0)
    return requirements.requests.get(key, 0.0) if key in _PLAIN else 0.0


def _count_fitting(left: float, requested: float) -> int:
    return max(0, math.floor(left / requested + _ROUNDING))


def _amount(value: float) -> str:
    return f"{value / MIB:g}Mi" if value >= MIB else f"{value:g}"
