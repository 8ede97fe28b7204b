# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A trainer's limit of one resource in a manifest, and what it was before we raised it; pure.

Only the trainer's: what the sidecar has is sized from the limit that the job's owner stated, also
after a raise. An annotation keeps that one, by replica type.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from rover_kf.api.jobs import Manifest
from rover_kf.injection import keyed_lists
from rover_kf.job_kinds.job_kind import JobKind, Replica

Resources = dict[str, dict[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class LimitRaise:
    """A limit that rover-kf raised, in the resource's unit."""

    stated: int
    """By the job's owner."""
    limit: int
    """By the last raise."""


@dataclasses.dataclass(frozen=True, slots=True)
class ResourceLimit:
    """Of one resource."""

    resource: str
    """As a manifest names it."""
    annotation_key: str
    """The annotation that keeps raises."""
    parse: Callable[[object], int]
    """Reads a quantity in whole units; raises ValueError."""
    format: Callable[[int], str]
    """Writes one."""

    def limit_of(self, container: Mapping[str, Any]) -> int | None:
        """The container's limit; None if it has none.

        Raises:
            ValueError: what stands there is no quantity.
        """
        limits = (container.get("resources") or {}).get("limits") or {}
        stated = limits.get(self.resource)
        return None if stated is None else self.parse(stated)

    def resources(self, container: Mapping[str, Any], limit: int) -> Resources:
        """The container's resources with another limit.

        A request that equals the limit goes with it, so that a pod of class Guaranteed stays one; a
        smaller one stays, as its owner chose to ask for less than may be used.
        """
        given = container.get("resources") or {}
        limits = dict(given.get("limits") or {})
        requests = dict(given.get("requests") or {})
        asked = requests.get(self.resource)
        if asked is not None and self.parse(asked) == self.limit_of(container):
            requests[self.resource] = self.format(limit)
        limits[self.resource] = self.format(limit)
        return {**given, "limits": limits, **({"requests": requests} if requests else {})}

    def resize(self, container: Mapping[str, Any]) -> Resources:
        """What a pod is patched with to have what its template states.

        A request that a template leaves out was filled in with the limit when the pod was made.
        """
        given = container["resources"]
        amount = {self.resource: given["limits"][self.resource]}
        asked = (given.get("requests") or {}).get(self.resource)
        follows = asked is None or self.parse(asked) == self.limit_of(container)
        return {"limits": amount, "requests": dict(amount)} if follows else {"limits": amount}

    def raised(self, manifest: Manifest) -> dict[str, LimitRaise]:
        """The limits that were raised, by replica type as written."""
        annotations = manifest["metadata"].get("annotations") or {}
        try:
            found = json.loads(annotations.get(self.annotation_key) or "{}")
            return {
                str(key): LimitRaise(self.parse(low), self.parse(high))
                for key, (low, high) in found.items()
            }
        except (ValueError, TypeError, AttributeError, RecursionError):
            return {}  # edited by hand: the limits count as they stand

    def stated(self, manifest: Manifest, key: str, trainer: Mapping[str, Any]) -> int | None:
        """What the owner of the job stated before the limit was raised to what it is now.

        Args:
            manifest: the job.
            key: of the replica type, as written.
            trainer: its container.

        Returns:
            None if it was not raised, or if somebody changed it afterwards.
        """
        known = self.raised(manifest).get(key)
        return known.stated if known is not None and known.limit == self.limit_of(trainer) else None

    def annotation(self, limits: Mapping[str, LimitRaise]) -> str:
        """The annotation's text."""
        texts = {
            key: [self.format(one.stated), self.format(one.limit)] for key, one in limits.items()
        }
        return json.dumps(texts, sort_keys=True)

    def replica(self, given: Replica, job_kind: JobKind, limit: int) -> dict[str, Any]:
        """The spec of a replica type with another limit."""
        template = given.spec["template"]
        changed = keyed_lists.replace_item(
            template["spec"],
            "containers",
            job_kind.container,
            lambda trainer: {**trainer, "resources": self.resources(trainer, limit)},
        )
        return {**given.spec, "template": {**template, "spec": changed}}

    def patch(self, given: Replica, job_kind: JobKind, limit: int) -> dict[str, Any]:
        """Merge patch of a job's ``spec`` that gives a replica type another limit."""
        containers = self.replica(given, job_kind, limit)["template"]["spec"]["containers"]
        return {job_kind.specs: {given.key: {"template": {"spec": {"containers": containers}}}}}

    def other_containers_request(self, given: Replica, job_kind: JobKind) -> int:
        """What the pod's other containers ask for while the trainer runs."""
        pod = given.spec["template"]["spec"]
        others = [item for item in pod["containers"] if item["name"] != job_kind.container]
        others += [
            item
            for item in pod.get("initContainers") or ()
            if item.get("restartPolicy") == "Always"
        ]
        return sum(map(self._requested, others))

    def _requested(self, container: Mapping[str, Any]) -> int:
        given = container.get("resources") or {}
        both = {**(given.get("limits") or {}), **(given.get("requests") or {})}
        return self.parse(both[self.resource]) if self.resource in both else 0
