# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Claims that a job mounts: there, of a class that exists, and shared where pods share them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from rover_kf.api.jobs import Manifest
from rover_kf.doctor import dry_run_objects
from rover_kf.doctor.api_query import ApiClient, ListResult, ObjectResult, get, list_all
from rover_kf.doctor.finding import Finding, unknown

CHECK = "storage"
_DEFAULT = "storageclass.kubernetes.io/is-default-class"
_SHARED = {"ReadWriteMany", "ReadOnlyMany"}


@dataclasses.dataclass(frozen=True, slots=True)
class VolumeClaimState:
    """Claims by their name, and the classes that volumes can be had of."""

    namespace: str
    claims: Mapping[str, ObjectResult]
    classes: ListResult
    max_pods: int
    """That may be there at once."""


def collect(api: ApiClient, namespace: str, job: Manifest) -> VolumeClaimState:
    """Ask for the claims of a job, and for all classes."""
    place = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    found = {
        name: get(api, f"{place}/{name}", f"claim {name}") for name in sorted(claim_names(job))
    }
    classes = list_all(api, "/apis/storage.k8s.io/v1/storageclasses", "storage classes")
    replicas = sum(spec.get("replicas", 1) for spec in dry_run_objects.replica_specs(job).values())
    most = (job["spec"].get("elasticPolicy") or {}).get("maxReplicas") or 0
    return VolumeClaimState(namespace, found, classes, max(replicas, most))


def claim_names(job: Manifest) -> set[str]:
    """Names of the claims that a job's pods mount."""
    return {
        volume["persistentVolumeClaim"]["claimName"]
        for spec in dry_run_objects.replica_specs(job).values()
        for volume in spec["template"]["spec"].get("volumes") or ()
        if "persistentVolumeClaim" in volume
    }


def check(observed: VolumeClaimState) -> Iterator[Finding]:
    """Each claim; without one, whether one could be had."""
    if not observed.claims:
        yield _check_storage_classes(observed.classes)
    for name, answer in observed.claims.items():
        if answer.denial:
            yield unknown(
                CHECK, answer.denial, f"get persistentvolumeclaims of {observed.namespace}"
            )
        elif answer.value is None:
            what = (
                f"there is no claim {name} in {observed.namespace}: pods would wait for it for ever"
            )
            yield Finding(CHECK, "broken", what, f"create the claim {name} before the job")
        else:
            yield _check_claim(name, answer.value, observed)


def _check_claim(name: str, claim: Mapping[str, Any], observed: VolumeClaimState) -> Finding:
    spec, phase = claim["spec"], (claim.get("status") or {}).get("phase")
    chosen = spec.get("storageClassName")
    classes = {item["metadata"]["name"]: item for item in observed.classes.items}
    if phase == "Lost":
        mend = f"delete the claim {name} and create it anew, or bring its volume back"
        return Finding(CHECK, "broken", f"claim {name} has lost its volume", mend)
    if observed.max_pods > 1 and not _SHARED & set(spec["accessModes"]):
        what = (
            f"claim {name} is {', '.join(spec['accessModes'])}, but up to "
            f"{observed.max_pods} pods use it"
        )
        mend = "make a claim with ReadWriteMany, of a class whose volumes several nodes can mount"
        return Finding(CHECK, "broken", what, mend)
    if phase == "Bound":
        return Finding(CHECK, "good", f"claim {name} is bound")
    what = ""
    if chosen and chosen not in classes:
        what = f"claim {name} wants the storage class {chosen}, which is not there"
    elif chosen is None and not any(map(_is_default, classes.values())):
        what = f"claim {name} names no storage class, and the cluster has no default one"
    if what and not observed.classes.denial:
        mend = f"create the claim anew with one of: {', '.join(sorted(classes)) or 'none yet'}"
        return Finding(CHECK, "broken", what, mend)
    if classes.get(chosen or "", {}).get("volumeBindingMode") == "WaitForFirstConsumer":
        return Finding(CHECK, "good", f"claim {name} will be bound when a pod mounts it")
    mend = f"kubectl -n {observed.namespace} describe pvc {name}"
    return Finding(CHECK, "warning", f"claim {name} is {phase}, not Bound", mend)


def _check_storage_classes(classes: ListResult) -> Finding:
    if classes.denial:
        return unknown(CHECK, classes.denial, "list storageclasses")
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
