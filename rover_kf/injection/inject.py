# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The one function that makes a plain job a rover-kf job, and its inverse.

inject() first takes away whatever it once added, then adds it anew. Hence it is idempotent, and
it repairs a job of which a merge patch has replaced only some arrays (``kubectl apply`` of the
user's own file does that).
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rover_kf.api import names
from rover_kf.api.jobs import Event, Manifest
from rover_kf.injection import (
    command,
    injection_plan,
    lifecycle,
    security,
    sidecar_container,
    trainer_container,
    volumes,
)
from rover_kf.injection.settings import InjectionSettings
from rover_kf.injection.validation import validate
from rover_kf.job_kinds.job_spec import JobSpec
from rover_kf.job_kinds.registry import kind_of
from rover_kf.system.html_tables import NotebookTable


@dataclasses.dataclass(frozen=True, slots=True)
class Injected(NotebookTable):
    """What came out."""

    manifest: dict[str, Any]
    warnings: tuple[Event, ...] = ()
    """What the job's owner should know; nothing that stops the job."""
    notes: tuple[str, ...] = ()
    """What was decided by figures, a sentence each."""

    def _html_title(self) -> str:
        return f"{self.manifest['metadata'].get('name', '')}, patched"

    def _html_rows(self) -> Iterable[Sequence[object]]:
        job_kind = kind_of(self.manifest)
        for replica in job_kind.replicas(self.manifest):
            pod = self.manifest["spec"][job_kind.specs][replica.key]["template"]["spec"]
            for part in ("initContainers", "containers", "volumes"):
                yield f"{replica.key} {part}", ", ".join(one["name"] for one in pod.get(part) or ())
            yield f"{replica.key} command", " ".join(job_kind.trainer(replica).get("command") or ())
        for event in self.warnings:
            yield f"warning: {event.reason}", event.message


def inject(
    manifest: Manifest,
    *,
    settings: InjectionSettings,
    defaults: Mapping[str, str] | None = None,
    source: str = "manifest",
    allow_unmounted: bool = False,
) -> Injected:
    """Add runtime, sidecar, arena, launcher and environment to a job.

    Args:
        manifest: a PyTorchJob or TFJob, injected already or not; left as it is.
        settings: images and accounts of the place.
        defaults: policy for what the job's annotations do not say.
        source: file or object named in errors.
        allow_unmounted: accept a checkpoint path that no volume mount covers (embedded runs,
            where it is a path of this machine).

    Raises:
        ManifestError: the job cannot be used, with key, value and what is allowed.
        PolicyError: an annotation is wrong.
    """
    policy = validate.validate(
        manifest, defaults=defaults, source=source, allow_unmounted=allow_unmounted
    )
    job_kind = kind_of(manifest, source=source)
    bare = remove(manifest)
    plans = injection_plan.plan_replicas(JobSpec(job_kind, bare), policy, settings)
    specs, warnings = dict(bare["spec"][job_kind.specs]), list[Event]()
    for item in plans:
        specs[item.replica.key], told = _apply_replica(item)
        warnings += told
    spec = lifecycle.apply_job(
        {**bare["spec"], job_kind.specs: specs}, injection_plan.min_pods(plans)
    )
    warnings += validate.storage_warnings(plans)
    done = {**bare, "metadata": _metadata(bare["metadata"], plans, specs), "spec": spec}
    notes = tuple(
        lifecycle.describe_termination_grace(item)
        for item in plans
        if item.world.checkpoint_path(policy)
    )
    return Injected(copy.deepcopy(done), tuple(warnings), notes)


def remove(manifest: Manifest) -> dict[str, Any]:
    """Take our containers, volumes, variables, annotations and command away again.

    What cannot be told from a user's own stays: the label, explicit replicas, fsGroup, a raised
    grace period, restartPolicy, minAvailable, the mesh annotations.
    """
    job_kind = kind_of(manifest)
    recorded = command.recorded(manifest)
    bare = copy.deepcopy(dict(manifest))
    for key, spec in bare["spec"][job_kind.specs].items():
        pod = sidecar_container.remove(spec["template"]["spec"])
        pod = volumes.remove(pod, job_kind.container)
        pod = trainer_container.remove(pod, job_kind.container, recorded.get(key))
        spec["template"]["spec"] = pod
    ours = (
        names.INJECTED_ANNOTATION,
        names.ORIGINAL_COMMAND_ANNOTATION,
        names.NOT_REWRITTEN_ANNOTATION,
    )
    annotations = bare["metadata"].get("annotations")
    if annotations and any(key in annotations for key in ours):
        kept = {key: value for key, value in annotations.items() if key not in ours}
        bare["metadata"] = {**bare["metadata"], "annotations": kept}
        if not kept:
            del bare["metadata"]["annotations"]
    return bare


def is_injected(manifest: Manifest) -> bool:
    """Whether inject() has made this job."""
    return names.INJECTED_ANNOTATION in (manifest["metadata"].get("annotations") or {})


def pin_image(settings: InjectionSettings, job: JobSpec) -> InjectionSettings:
    """The settings with the sidecar's image that the job already has.

    A running job keeps its image when the controller is upgraded: its pods are of one version.
    """
    image = sidecar_container.image_of(job)
    return dataclasses.replace(settings, sidecar_image=image) if image else settings


def _apply_replica(item: injection_plan.ReplicaPlan) -> tuple[dict[str, Any], tuple[Event, ...]]:
    spec, warnings = lifecycle.apply_replica(item.replica.spec, item)
    template = sidecar_container.exclude_ports(spec["template"])
    pod = trainer_container.apply(template["spec"], item)
    pod = volumes.apply(pod, item)
    pod = sidecar_container.apply(pod, item)
    pod = security.apply(pod, item)
    template["spec"] = lifecycle.apply_pod(pod, item)
    if item.not_rewritten:
        message = (
            f"{item.replica.path}: the trainer's command stays as it is, so the job has "
            f"checkpoints but neither recovery nor scaling: {item.not_rewritten}"
        )
        warnings += (Event(names.EVENT_NOT_REWRITTEN, message, warning=True),)
    return {**spec, "template": template}, warnings


def _metadata(
    metadata: Mapping[str, Any],
    plans: tuple[injection_plan.ReplicaPlan, ...],
    specs: Mapping[str, Any],
) -> dict[str, Any]:
    """Label, the hash of what was written, the commands before, or why one stays."""
    lines = {
        item.replica.key: command.read(item.job_kind.trainer(item.replica))
        for item in plans
        if item.rewritten is not None
    }
    reasons = {item.replica.key: item.not_rewritten for item in plans if item.not_rewritten}
    text = injection_plan.canonical(specs)
    ours = {names.INJECTED_ANNOTATION: hashlib.sha256(text.encode()).hexdigest()[:16]}
    if lines:
        ours[names.ORIGINAL_COMMAND_ANNOTATION] = command.record(lines)
    if reasons:
        ours[names.NOT_REWRITTEN_ANNOTATION] = injection_plan.canonical(reasons)
    labels = {**(metadata.get("labels") or {}), names.INJECT_LABEL: "true"}
    annotations = {**(metadata.get("annotations") or {}), **ours}
    return {**metadata, "labels": labels, "annotations": annotations}
