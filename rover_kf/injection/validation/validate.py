# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Refuses a job before anything starts, naming key, value and what is allowed.

Called by inject() and by whoever reads a manifest without patching it (recommend, the CLI).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import Event, Manifest
from rover_kf.api.policy import policy_fields
from rover_kf.injection import quantities, sidecar_container, sizing, storage_mount, volumes
from rover_kf.injection.injection_plan import ReplicaPlan
from rover_kf.injection.policy.rover_policy import RoverPolicy
from rover_kf.injection.validation import mounts
from rover_kf.job_kinds.job_kind import Replica
from rover_kf.job_kinds.job_spec import JobSpec


def validate(
    manifest: Manifest,
    *,
    defaults: Mapping[str, str] | None = None,
    source: str = "manifest",
    allow_unmounted: bool = False,
) -> RoverPolicy:
    """Check a PyTorchJob or TFJob and return its policy.

    Args:
        manifest: the job, injected already or not.
        defaults: policy for what the job's annotations do not say.
        source: file or object named in errors.
        allow_unmounted: accept a checkpoint path that no volume mount covers.

    Raises:
        ManifestError: the job cannot be used.
        PolicyError: an annotation is wrong, or does not go with the job.
    """
    job = JobSpec.parse(manifest, source=source)
    metadata = manifest["metadata"]
    label = (metadata.get("labels") or {}).get(names.INJECT_LABEL, "true")
    if label != "true":
        key = f"metadata.labels[{names.INJECT_LABEL}]"
        allowed = '"true", or no such label'
        raise errors.ManifestError(key, label, allowed=allowed, source=source)
    policy = RoverPolicy.from_annotations(
        metadata.get("annotations") or {}, defaults=defaults, source=source
    )
    _check_templates(job, source)
    job.kind.check(manifest, policy, source)
    _check_bounds(job, policy, source)
    for replica in job.replicas:
        trainer = job.kind.trainer(replica)
        _check_reserved(replica, trainer, source)
        alone = replica.kind in job.standalone_types
        if replica.kind == "ps" or not alone:
            _check_shards(replica, trainer, policy, source, allow_unmounted=allow_unmounted)
        if alone:
            continue  # keeps no checkpoints
        _check_arena(replica, trainer, policy, source)
        _check_path(replica, trainer, policy, source, allow_unmounted=allow_unmounted)
    return policy


def storage_warnings(plans: tuple[ReplicaPlan, ...]) -> tuple[Event, ...]:
    """What is allowed but loses checkpoints: storage that ends with its pod."""
    warnings = []
    for item in plans:
        pod = item.replica.spec["template"]["spec"]
        mount = item.storage_mount
        if mount is not None and (kind := storage_mount.per_pod_volume_type(pod, mount)):
            message = (
                f"{item.replica.path}: {item.policy.checkpoint.path} is on a volume of type "
                f"{kind}, which ends with its pod and is not seen by the others; use a shared one"
            )
            warnings.append(Event(names.EVENT_CHECKPOINT_WARNING, message, warning=True))
    return tuple(warnings)


def _check_templates(job: JobSpec, source: str) -> None:
    """Refuse a policy that stands where nobody reads it."""
    read = job.manifest["metadata"].get("annotations") or {}
    known = {names.PREFIX + key for key in policy_fields()}
    for replica in job.replicas:
        stated = (replica.spec["template"].get("metadata") or {}).get("annotations") or {}
        for key in sorted(known.intersection(stated) - read.keys()):
            path = f"{replica.path}.template.metadata.annotations[{key}]"
            allowed = "metadata.annotations, the job's own: those of pods are not read"
            raise errors.ManifestError(path, stated[key], allowed=allowed, source=source)


def _check_bounds(job: JobSpec, policy: RoverPolicy, source: str) -> None:
    elastic = job.kind.elastic_policy(job.manifest)
    low, high = elastic.get("minReplicas"), elastic.get("maxReplicas")
    for key, value in (("minReplicas", low), ("maxReplicas", high)):
        if value is not None and (not isinstance(value, int) or value < 1):
            path, allowed = f"spec.elasticPolicy.{key}", "a whole number, 1 or more"
            raise errors.ManifestError(path, value, allowed=allowed, source=source)
    if low and high and low > high:
        path, allowed = "spec.elasticPolicy.minReplicas", f"at most maxReplicas, which is {high}"
        raise errors.ManifestError(path, low, allowed=allowed, source=source)
    if elastic.get("metrics") and policy.scaling.mode == "auto":
        allowed = "off or recommend: spec.elasticPolicy.metrics makes an autoscaler of its own"
        key = names.PREFIX + "scaling.mode"
        raise errors.PolicyError(key, "auto", allowed=allowed, source=source)
    low, high = sizing.worker_bounds(job, policy)
    if low > high:
        allowed = f"at most spec.elasticPolicy.maxReplicas, which is {high}"
        key = names.PREFIX + "scaling.min"
        raise errors.PolicyError(key, low, allowed=allowed, source=source)
    workers = job.workers
    if workers and not low <= workers <= high:
        path = f"spec.{job.kind.specs}.Worker.replicas"
        allowed = f"{low} to {high} (scaling.min and scaling.max, else elasticPolicy)"
        raise errors.ManifestError(path, workers, allowed=allowed, source=source)


def _check_reserved(replica: Replica, trainer: Mapping[str, Any], source: str) -> None:
    """Names and places that are ours; what a former inject() wrote there is fine."""
    pod = replica.spec["template"]["spec"]
    path = f"{replica.path}.template.spec"
    ours = (names.RUNTIME_CONTAINER, names.SIDECAR_CONTAINER)
    found = [
        (f"{path}.containers", item["name"]) for item in pod["containers"] if item["name"] in ours
    ]
    found += [
        (f"{path}.initContainers", item["name"])
        for item in pod.get("initContainers") or ()
        if item["name"] in ours and not sidecar_container.is_managed(item)
    ]
    found += [
        (f"{path}.volumes", item["name"])
        for item in pod.get("volumes") or ()
        if item["name"] in volumes.NAMES and not volumes.is_managed(item)
    ]
    found += [
        (f"{path}.containers[{trainer['name']}].volumeMounts", mount["mountPath"])
        for mount in trainer.get("volumeMounts") or ()
        if storage_mount.covers(names.HOME, mount["mountPath"])
        and not volumes.is_managed_mount(mount)
    ]
    for key, value in found:
        allowed = f"another name or place: rover-kf adds its own {value}"
        raise errors.ManifestError(key, value, allowed=allowed, source=source)


def _check_arena(
    replica: Replica, trainer: Mapping[str, Any], policy: RoverPolicy, source: str
) -> None:
    path = f"{replica.path}.template.spec.containers[{trainer['name']}].resources"
    try:
        memory, limited = sizing.trainer_memory(trainer)
    except ValueError as cause:
        value, allowed = trainer["resources"], "quantities such as memory: 4Gi"
        raise errors.ManifestError(path, value, allowed=allowed, source=source) from cause
    arena = policy.checkpoint.arena
    if arena is not None and memory is not None and limited and arena > memory:
        allowed = (
            f"at most the trainer's memory limit, {quantities.format_bytes(memory)}, or raise that"
        )
        key, value = names.PREFIX + "checkpoint.arena", quantities.format_bytes(arena)
        raise errors.PolicyError(key, value, allowed=allowed, source=source)


def _check_path(
    replica: Replica,
    trainer: Mapping[str, Any],
    policy: RoverPolicy,
    source: str,
    *,
    allow_unmounted: bool,
) -> None:
    stated = policy.checkpoint.path
    if stated is None or (storage_mount.is_url(stated) and ".." not in stated.split("/")):
        return
    wanted = mounts.RequiredMount("checkpoint.path", stated)
    mount = mounts.find_mount(replica, trainer, wanted, source, allow_unmounted=allow_unmounted)
    if mount is not None and mount.get("subPathExpr"):
        path = f"{mounts.describe_location(replica, trainer)}[{mount['mountPath']}].subPathExpr"
        allowed = "subPath: the sidecar mounts the same volume without the trainer's variables"
        raise errors.ManifestError(path, mount["subPathExpr"], allowed=allowed, source=source)


def _check_shards(
    replica: Replica,
    trainer: Mapping[str, Any],
    policy: RoverPolicy,
    source: str,
    *,
    allow_unmounted: bool,
) -> None:
    """That chief and servers mount a volume there; whether it is one is seen when they run."""
    stated = policy.checkpoint.shards
    if stated is None:
        return
    wanted = mounts.RequiredMount("checkpoint.shards", stated)
    mount = mounts.find_mount(replica, trainer, wanted, source, allow_unmounted=allow_unmounted)
    pod = replica.spec["template"]["spec"]
    if mount is not None and (kind := storage_mount.per_pod_volume_type(pod, mount)):
        allowed = f"a volume that Chief and PS share: each pod has an {kind} of its own; {stated}"
        allowed += " is where PS write and the chief has to see it"
        path = mounts.describe_location(replica, trainer)
        raise errors.ManifestError(path, dict(mount), allowed=allowed, source=source)
