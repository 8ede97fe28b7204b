# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How many more pods of a job there is room for, and what the room ends at; pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from rover_kf.api.cluster_capacity import (
    Amounts,
    NodeRoom,
    PodNeed,
    QuotaRoom,
    Surroundings,
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
class MorePods:
    """Pods that may be added."""

    count: float
    """Infinite where nothing is known to end it."""
    why: str = ""
    """What it ends at, by name; empty where nothing does."""
    bound: str = ""
    """The same as one word: NODES, or what ``of_quota`` calls a quota."""


def of_quota(name: str) -> str:
    """What a quota is called as a bound."""
    return f"quota {name}"


def more_pods(need: PodNeed, around: Surroundings) -> MorePods:
    """How many more pods there is room for, now, by the tightest bound."""
    bounds = [quota_room(need, quota) for quota in around.quotas]
    if around.nodes is not None:
        bounds.append(node_room(need, around.nodes))
    return min(bounds, key=lambda bound: bound.count, default=MorePods(math.inf))


def quota_room(need: PodNeed, quota: QuotaRoom) -> MorePods:
    """How many more pods a quota lets be made."""
    counts = [
        (_times(left, asked), key)
        for key, left in quota.left.items()
        if (asked := counted(need, key)) > 0
    ]
    count, key = min(counts, default=(math.inf, ""))
    left = quota.left.get(key, 0.0)
    why = (
        f"ResourceQuota {quota.name} leaves {_amount(left)} of {key}, and a pod asks for "
        f"{_amount(counted(need, key))}"
    )
    return MorePods(count, why, of_quota(quota.name)) if key else MorePods(count)


def node_room(need: PodNeed, nodes: Iterable[NodeRoom]) -> MorePods:
    """How many more pods the nodes take, each pod whole on one node."""
    count = sum(places(need, node) for node in nodes)
    asked = ", ".join(f"{key} {_amount(value)}" for key, value in need.requests.items() if value)
    why = f"nodes have room for {count} more of its pods ({asked or 'no requests'})"
    return MorePods(count, why, NODES)


def places(need: PodNeed, node: NodeRoom, more: Amounts | None = None) -> int:
    """How many of those pods go on a node.

    Args:
        need: what a pod asks for.
        node: with what is left of it.
        more: to be reckoned as left, too.
    """
    if not takes(need, node):
        return 0
    given = more or {}
    asked = {"pods": 1.0, **{key: value for key, value in need.requests.items() if value}}
    return min(
        _times(node.free.get(key, 0.0) + given.get(key, 0.0), value) for key, value in asked.items()
    )


def takes(need: PodNeed, node: NodeRoom) -> bool:
    """Whether the pod may go to the node at all."""
    labelled = all(node.labels.get(key) == value for key, value in need.selector.items())
    barred = any(
        taint.effect in _KEEPS_AWAY and not _tolerates(need, taint) for taint in node.taints
    )
    return labelled and not barred and node.name not in need.left_out


def _tolerates(need: PodNeed, taint: Taint) -> bool:
    return any(
        key in ("", taint.key) and value in ("", taint.value) and effect in ("", taint.effect)
        for key, value, effect in need.tolerated
    )


def counted(need: PodNeed, key: str) -> float:
    """What one pod counts for a key of a quota."""
    if key in _PODS:
        return 1.0
    kind, _, name = key.partition(".")
    if kind == "limits":
        return need.limits.get(name, 0.0)
    if kind == "requests":
        return need.requests.get(name, 0.0)
    return need.requests.get(key, 0.0) if key in _PLAIN else 0.0


def _times(left: float, asked: float) -> int:
    return max(0, math.floor(left / asked + _ROUNDING))


def _amount(value: float) -> str:
    return f"{value / MIB:g}Mi" if value >= MIB else f"{value:g}"
