# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Quotas, LimitRanges and nodes of a cluster, read as the bounds of one namespace."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from rover_kf import errors
from rover_kf.api.cluster_capacity import Headroom, NamespaceLimits
from rover_kf.doctor.api_query import ApiClient
from rover_kf.injection import quantities

T = TypeVar("T")
Items = Iterable[Mapping[str, Any]]

ACCELERATORS = ("nvidia.com/gpu", "amd.com/gpu", "intel.com/gpu", "google.com/tpu")
_QUOTA_KEYS = {
    "cpu": ("cpu", "requests.cpu", "limits.cpu"),
    "memory": ("memory", "requests.memory", "limits.memory"),
    "accelerators": tuple(f"requests.{name}" for name in ACCELERATORS),
    "pods": ("pods", "count/pods"),
}


def read(api: ApiClient, namespace: str) -> NamespaceLimits:
    """Read the bounds of a namespace; what may not be read is named in ``unread``."""
    unread: list[str] = []
    place = f"/api/v1/namespaces/{namespace}"

    def read_bound(path: str, what: str, make: Callable[[Items], T]) -> T:
        try:
            return make(api.items(path, what=what))
        except (errors.RoverError, ValueError) as error:
            unread.append(f"{what} could not be read and bound nothing: {error}")
            return make([])

    nodes = read_bound("/api/v1/nodes", "nodes", nodes_of)
    quotas = read_bound(f"{place}/resourcequotas", f"quotas of {namespace}", quotas_of)
    most, least = read_bound(f"{place}/limitranges", f"limit ranges of {namespace}", ranges_of)
    return NamespaceLimits(nodes, quotas, most, least, tuple(unread))


def nodes_of(items: Items) -> tuple[Headroom, ...]:
    """What pods can have on each node that takes them.

    Raises:
        ValueError: an amount is no quantity.
    """
    ready = [node for node in items if not (node.get("spec") or {}).get("unschedulable")]
    rooms = []
    for node in ready:
        has = (node.get("status") or {}).get("allocatable") or {}
        devices = sum(_number(has[name]) for name in ACCELERATORS if name in has)
        sizes = {key: _number(has[key]) for key in ("cpu", "memory", "pods") if key in has}
        rooms.append(Headroom(accelerators=devices, **sizes))
    return tuple(rooms)


def quotas_of(items: Items) -> tuple[Headroom, ...]:
    """What may still be asked for, by each quota without scopes.

    Raises:
        ValueError: an amount is no quantity.
    """
    rooms = []
    for quota in items:
        spec, status = quota.get("spec") or {}, quota.get("status") or {}
        if spec.get("scopes") or spec.get("scopeSelector"):
            continue
        hard, used = status.get("hard") or spec.get("hard") or {}, status.get("used") or {}
        left = {key: _number(amount) - _number(used.get(key, 0)) for key, amount in hard.items()}
        bounds = {
            field: min((left[key] for key in keys if key in left), default=None)
            for field, keys in _QUOTA_KEYS.items()
        }
        rooms.append(Headroom(**bounds))
    return tuple(rooms)


def ranges_of(items: Items) -> tuple[Headroom, Headroom]:
    """The tightest max and min of a container over all LimitRanges.

    Raises:
        ValueError: an amount is no quantity.
    """
    most, least = Headroom(), Headroom()
    for item in items:
        for rule in (item.get("spec") or {}).get("limits") or []:
            if rule.get("type") != "Container":
                continue
            most = _tightest(most, rule.get("max") or {}, min)
            least = _tightest(least, rule.get("min") or {}, max)
    return most, least


def _tightest(room: Headroom, stated: Mapping[str, Any], pick: Callable[..., float]) -> Headroom:
    found = {}
    for key in ("cpu", "memory"):
        known = getattr(room, key)
        amounts = [_number(stated[key])] if key in stated else []
        both = [*amounts, *([known] if known is not None else [])]
        found[key] = pick(both) if both else None
    return dataclasses.replace(room, **found)


def _number(value: object) -> float:
    return float(quantities.parse(value))
