# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer's memory limit in a manifest, and what it was before rover-kf raised it; pure.

Only the trainer's: what the sidecar has is sized from the limit that the job's owner stated, also
after a raise. An annotation keeps that one, by replica type.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import Manifest
from rover_kf.injection import adapters, items, quantities
from rover_kf.injection.adapters import JobAdapter, Replica

Resources = dict[str, dict[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class Raise:
    """A limit that rover-kf raised, in bytes."""

    stated: int
    """By the job's owner."""
    limit: int
    """By the last raise."""


def of(container: Mapping[str, Any]) -> int | None:
    """The container's memory limit in bytes; None if it has none.

    Raises:
        ValueError: what stands there is no quantity.
    """
    stated = ((container.get("resources") or {}).get("limits") or {}).get("memory")
    return None if stated is None else quantities.parse_bytes(stated)


def most(manifest: Manifest) -> int:
    """The largest of the trainers' limits in a job's manifest, in bytes; 0 if none is stated."""
    try:
        adapter = adapters.adapter_for(manifest)
        trainers = [adapter.trainer(one) for one in adapter.replicas(manifest)]
        return max((of(trainer) or 0 for trainer in trainers), default=0)
    except (errors.ManifestError, LookupError, TypeError, StopIteration, ValueError):
        return 0  # not a job that could be admitted: nothing is known of it


def resources(container: Mapping[str, Any], limit: int) -> Resources:
    """The container's resources with another limit.

    A request that equals the limit goes with it, so that a pod of class Guaranteed stays one; a
    smaller one stays, as its owner chose to ask for less than may be used.
    """
    given = container.get("resources") or {}
    limits = dict(given.get("limits") or {})
    requests = dict(given.get("requests") or {})
    text = quantities.format_bytes(limit)
    asked = requests.get("memory")
    if asked is not None and quantities.parse_bytes(asked) == of(container):
        requests["memory"] = text
    limits["memory"] = text
    return {**given, "limits": limits, **({"requests": requests} if requests else {})}


def resize(container: Mapping[str, Any]) -> Resources:
    """What a pod is patched with to have the memory that its template states.

    A request that a template leaves out was filled in with the limit when the pod was made.
    """
    given = container["resources"]
    memory = {"memory": given["limits"]["memory"]}
    asked = (given.get("requests") or {}).get("memory")
    follows = asked is None or quantities.parse_bytes(asked) == of(container)
    return {"limits": memory, "requests": dict(memory)} if follows else {"limits": memory}


def raised(manifest: Manifest) -> dict[str, Raise]:
    """The limits that were raised, by replica type as written."""
    annotations = manifest["metadata"].get("annotations") or {}
    try:
        found = json.loads(annotations.get(names.MEMORY_RAISED_ANNOTATION) or "{}")
        return {
            str(key): Raise(quantities.parse_bytes(low), quantities.parse_bytes(high))
            for key, (low, high) in found.items()
        }
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}  # edited by hand: the limits count as they stand


def stated(manifest: Manifest, key: str, trainer: Mapping[str, Any]) -> int | None:
    """What the owner of the job stated before the limit was raised to what it is now.

    Args:
        manifest: the job.
        key: of the replica type, as written.
        trainer: its container.

    Returns:
        Bytes; None if it was not raised, or if somebody changed it afterwards.
    """
    known = raised(manifest).get(key)
    return known.stated if known is not None and known.limit == of(trainer) else None


def annotation(limits: Mapping[str, Raise]) -> str:
    """The annotation's text."""
    texts = {
        key: [quantities.format_bytes(one.stated), quantities.format_bytes(one.limit)]
        for key, one in limits.items()
    }
    return json.dumps(texts, sort_keys=True)


def replica(given: Replica, adapter: JobAdapter, limit: int) -> dict[str, Any]:
    """The spec of a replica type with another limit."""
    template = given.spec["template"]
    changed = items.replaced(
        template["spec"],
        "containers",
        adapter.container,
        lambda trainer: {**trainer, "resources": resources(trainer, limit)},
    )
    return {**given.spec, "template": {**template, "spec": changed}}


def patch(given: Replica, adapter: JobAdapter, limit: int) -> dict[str, Any]:
    """Merge patch of a job's ``spec`` that gives a replica type another limit."""
    containers = replica(given, adapter, limit)["template"]["spec"]["containers"]
    return {adapter.specs: {given.key: {"template": {"spec": {"containers": containers}}}}}


def beside(given: Replica, adapter: JobAdapter) -> int:
    """Bytes that the pod's other containers ask for while the trainer runs."""
    pod = given.spec["template"]["spec"]
    others = [item for item in pod["containers"] if item["name"] != adapter.container]
    others += [
        item for item in pod.get("initContainers") or () if item.get("restartPolicy") == "Always"
    ]
    return sum(_asked(item) for item in others)


def _asked(container: Mapping[str, Any]) -> int:
    given = container.get("resources") or {}
    both = {**(given.get("limits") or {}), **(given.get("requests") or {})}
    return quantities.parse_bytes(both["memory"]) if "memory" in both else 0
