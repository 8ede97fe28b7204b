# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Nodes, pods, quotas and autoscalers as plain objects, read as room for more pods; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rover_kf.api.cluster_capacity import (
    Autoscaler,
    ClusterCapacity,
    NamespaceObjects,
    NodeCapacity,
    PodRequirements,
    QuotaHeadroom,
    Taint,
)
from rover_kf.api.jobs import ObservedJob
from rover_kf.injection import node_affinity, quantities
from rover_kf.job_kinds.registry import kind_of

Item = Mapping[str, Any]
_TRAINING_SCOPES = ("NotTerminating", "NotBestEffort")
"""Of a quota: pods without a deadline that ask for something, as training pods do."""


def read_capacity(
    objects: NamespaceObjects, nodes: tuple[NodeCapacity, ...] | None
) -> ClusterCapacity:
    """Return what is left for jobs of a namespace; ValueError for what is no quantity."""
    quotas, autoscalers = quota_headrooms(objects.quotas), list_autoscalers(objects.autoscalers)
    return ClusterCapacity(nodes, quotas, autoscalers, objects.unread)


def pod_need(job: ObservedJob, kind: str = "worker") -> PodRequirements:
    """What one more pod of the job asks for, and where it may go.

    Args:
        job: as observed.
        kind: its replica type.

    Raises:
        ValueError: an amount is no quantity.
    """
    replicas = kind_of(job.manifest).replicas(job.manifest)
    spec = next(item for item in replicas if item.kind == kind).spec["template"]["spec"]
    tolerated = tuple(
        (one.get("key", ""), one.get("value", ""), one.get("effect", ""))
        for one in spec.get("tolerations") or ()
    )
    amounts = (pod_requests(spec), pod_requests(spec, "limits"))
    labels, excluded = dict(spec.get("nodeSelector") or {}), node_affinity.excluded_nodes(spec)
    return PodRequirements(*amounts, labels, tolerated, excluded)


def node_capacities(nodes: Iterable[Item], pods: Iterable[Item]) -> tuple[NodeCapacity, ...]:
    """Return what pods that have not ended leave of each node that takes pods."""
    taken: dict[str, dict[str, float]] = {}
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if node:
            _add(taken.setdefault(node, {}), {**pod_requests(pod["spec"]), "pods": 1.0})
    return tuple(_node_capacity(node, taken) for node in nodes if _is_schedulable(node))


def pod_requests(spec: Item, kind: str = "requests") -> dict[str, float]:
    """Return what a pod's containers ask for together, as the scheduler reckons it.

    ``kind`` is ``limits``, or ``requests``, where a limit counts for a request that is not stated.
    """
    total: dict[str, float] = {}
    for item in spec.get("containers") or ():
        _add(total, _container_requests(item, kind))
    most: dict[str, float] = {}
    beside: dict[str, float] = {}
    for item in spec.get("initContainers") or ():
        asked = _container_requests(item, kind)
        if item.get("restartPolicy") == "Always":
            _add(beside, asked)
            asked = {}
        for key in {*asked, *beside}:
            most[key] = max(most.get(key, 0.0), asked.get(key, 0.0) + beside.get(key, 0.0))
    _add(total, beside)
    whole = {key: max(total.get(key, 0.0), most.get(key, 0.0)) for key in sorted({*total, *most})}
    _add(whole, {key: _number(value) for key, value in (spec.get("overhead") or {}).items()})
    return whole


def quota_headrooms(quotas: Iterable[Item]) -> tuple[QuotaHeadroom, ...]:
    """What each quota leaves that counts training pods."""
    return tuple(
        QuotaHeadroom(quota["metadata"]["name"], dict(_remaining(quota)))
        for quota in quotas
        if _counts_training(quota.get("spec") or {})
    )


def list_autoscalers(items: Iterable[Item]) -> tuple[Autoscaler, ...]:
    """Who scales what."""
    found = []
    for item in items:
        target = item["spec"]["scaleTargetRef"]
        found.append(Autoscaler(item["metadata"]["name"], target["kind"], target["name"]))
    return tuple(found)


def _remaining(quota: Item) -> Iterator[tuple[str, float]]:
    spec, status = quota.get("spec") or {}, quota.get("status") or {}
    used = status.get("used") or {}
    for key, hard in (status.get("hard") or spec.get("hard") or {}).items():
        yield key, _number(hard) - _number(used.get(key, "0"))


def _counts_training(spec: Item) -> bool:
    scopes = spec.get("scopes") or ()
    return not spec.get("scopeSelector") and all(one in _TRAINING_SCOPES for one in scopes)


def _is_schedulable(node: Item) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and not (node.get("spec") or {}).get("unschedulable")


def _node_capacity(node: Item, taken: Mapping[str, Mapping[str, float]]) -> NodeCapacity:
    name = node["metadata"]["name"]
    gone = taken.get(name, {})
    has = (node.get("status") or {}).get("allocatable") or {}
    taints = (node.get("spec") or {}).get("taints") or ()
    return NodeCapacity(
        name,
        {key: _number(value) - gone.get(key, 0.0) for key, value in has.items()},
        dict(node["metadata"].get("labels") or {}),
        tuple(Taint(one["key"], one.get("value", ""), one["effect"]) for one in taints),
    )


def _container_requests(container: Item, kind: str) -> dict[str, float]:
    resources = container.get("resources") or {}
    limits = resources.get("limits") or {}
    given = limits if kind == "limits" else {**limits, **(resources.get("requests") or {})}
    return {key: _number(value) for key, value in given.items()}


def _add(total: dict[str, float], more: Mapping[str, float]) -> None:
    for key, value in more.items():
        total[key] = total.get(key, 0.0) + value


def _number(value: object) -> float:
    return float(quantities.parse(value))
