# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Claims that a job mounts: there, of a class that exists, and shared where pods share them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from rover_kf.api.jobs import Manifest
from rover_kf.doctor import dry_run_objects
from rover_kf.doctor.api_query import Answer, Api, Listing, ask, ask_all
from rover_kf.doctor.finding import Finding, unread

CHECK = "storage"
_DEFAULT = "storageclass.kubernetes.io/is-default-class"
_SHARED = {"ReadWriteMany", "ReadOnlyMany"}


@dataclasses.dataclass(frozen=True, slots=True)
class Claims:
    """Claims by their name, and the classes that volumes can be had of."""

    namespace: str
    found: Mapping[str, Answer]
    classes: Listing
    pods: int
    """That may be there at once."""


def look(api: Api, namespace: str, job: Manifest) -> Claims:
    """Ask for the claims of a job, and for all classes."""
    place = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    found = {name: ask(api, f"{place}/{name}", f"claim {name}") for name in sorted(named(job))}
    classes = ask_all(api, "/apis/storage.k8s.io/v1/storageclasses", "storage classes")
    replicas = sum(spec.get("replicas", 1) for spec in dry_run_objects.specs(job).values())
    most = (job["spec"].get("elasticPolicy") or {}).get("maxReplicas") or 0
    return Claims(namespace, found, classes, max(replicas, most))


def named(job: Manifest) -> set[str]:
    """Names of the claims that a job's pods mount."""
    return {
        volume["persistentVolumeClaim"]["claimName"]
        for spec in dry_run_objects.specs(job).values()
        for volume in spec["template"]["spec"].get("volumes") or ()
        if "persistentVolumeClaim" in volume
    }


def judge(seen: Claims) -> Iterator[Finding]:
    """Each claim; without one, whether one could be had."""
    if not seen.found:
        yield _classes(seen.classes)
    for name, answer in seen.found.items():
        if answer.refusal:
            yield unread(CHECK, answer.refusal, f"get persistentvolumeclaims of {seen.namespace}")
        elif answer.found is None:
            what = f"there is no claim {name} in {seen.namespace}: pods would wait for it for ever"
            yield Finding(CHECK, "broken", what, f"create the claim {name} before the job")
        else:
            yield _claim(name, answer.found, seen)


def _claim(name: str, claim: Mapping[str, Any], seen: Claims) -> Finding:
    spec, phase = claim["spec"], (claim.get("status") or {}).get("phase")
    chosen = spec.get("storageClassName")
    classes = {item["metadata"]["name"]: item for item in seen.classes.items}
    if phase == "Lost":
        mend = f"delete the claim {name} and create it anew, or bring its volume back"
        return Finding(CHECK, "broken", f"claim {name} has lost its volume", mend)
    if seen.pods > 1 and not _SHARED & set(spec["accessModes"]):
        what = (
            f"claim {name} is {', '.join(spec['accessModes'])}, but up to {seen.pods} pods use it"
        )
        mend = "make a claim with ReadWriteMany, of a class whose volumes several nodes can mount"
        return Finding(CHECK, "broken", what, mend)
    if phase == "Bound":
        return Finding(CHECK, "good", f"claim {name} is bound")
    if not seen.classes.refusal and chosen and chosen not in classes:
        what = f"claim {name} wants the storage class {chosen}, which is not there"
        mend = f"create the claim anew with one of: {', '.join(sorted(classes)) or 'none yet'}"
        return Finding(CHECK, "broken", what, mend)
    if not seen.classes.refusal and chosen is None and not any(map(_is_default, classes.values())):
        what = f"claim {name} names no storage class, and the cluster has no default one"
        mend = f"create the claim anew with one of: {', '.join(sorted(classes)) or 'none yet'}"
        return Finding(CHECK, "broken", what, mend)
    if classes.get(chosen or "", {}).get("volumeBindingMode") == "WaitForFirstConsumer":
        return Finding(CHECK, "good", f"claim {name} will be bound when a pod mounts it")
    mend = f"kubectl -n {seen.namespace} describe pvc {name}"
    return Finding(CHECK, "warning", f"claim {name} is {phase}, not Bound", mend)


def _classes(classes: Listing) -> Finding:
    if classes.refusal:
        return unread(CHECK, classes.refusal, "list storageclasses")
    default = [item["metadata"]["name"] for item in classes.items if _is_default(item)]
    if default:
        return Finding(CHECK, "good", f"the default storage class is {default[0]}")
    known = ", ".join(item["metadata"]["name"] for item in classes.items)
    what = f"there is no default storage class (there are: {known or 'none'})"
    mend = (
        "name a class in the claims for checkpoints, or keep them in an object store: annotation "
        "rover-kf.io/checkpoint.path: s3://…"
    )
    return Finding(CHECK, "warning", what, mend)


def _is_default(item: Mapping[str, Any]) -> bool:
    return (item["metadata"].get("annotations") or {}).get(_DEFAULT) == "true"
