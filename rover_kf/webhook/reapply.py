# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps what rover-kf scaled or raised of a job when the job's own file is applied again.

``kubectl apply`` compares the file with the live object, not with the file applied before: a job
that was scaled from 2 to 3 would be set back to 2 by an unchanged file. Under scaling.mode auto the
controller owns that number, and so it does a limit that it has raised. A changed file, and
any other way of writing the number, is obeyed.
Server-side apply needs none of this: there the API server itself reports the conflict.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rover_kf.api.jobs import Manifest
from rover_kf.injection.adapters import TENSORFLOW, adapter_for
from rover_kf.injection.limits.manifest_cpu import CPU
from rover_kf.injection.limits.manifest_memory import MEMORY
from rover_kf.injection.limits.raised_limit import ResourceLimit
from rover_kf.injection.validation.validate import validate

APPLY_MANAGER = "kubectl-client-side-apply"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_SCALED = ("worker", "ps")


def is_reapplied(request: Mapping[str, Any]) -> bool:
    """Whether an UPDATE is ``kubectl apply`` of the file that was applied before."""
    options = request.get("options")
    if not isinstance(options, Mapping) or options.get("fieldManager") != APPLY_MANAGER:
        return False
    new, old = (_last_applied(request.get(key) or {}) for key in ("object", "oldObject"))
    return new is not None and new == old


def preserve_replicas(
    job: Manifest, old: Manifest, defaults: Mapping[str, str] | None
) -> tuple[Manifest, tuple[str, ...]]:
    """The job with the old numbers of replicas that rover-kf scales, and what to tell its owner.

    Raises:
        InputError: the job is wrong.
    """
    policy, adapter = validate(job, defaults=defaults), adapter_for(job)
    before = {item.kind: item for item in adapter.replicas(old)}
    if policy.scaling.mode != "auto" or (adapter is TENSORFLOW and "ps" not in before):
        return job, ()
    specs, told = dict(job["spec"][adapter.specs]), list[str]()
    for asked in adapter.replicas(job):
        now = before.get(asked.kind)
        if asked.kind not in _SCALED or now is None or now.replicas == asked.replicas:
            continue
        specs[asked.key] = {**asked.spec, "replicas": now.replicas}
        told.append(
            f"{asked.path}.replicas stays {now.replicas}: rover-kf scales this job (scaling.mode "
            "auto); to set it yourself change the file or use kubectl scale"
        )
    return {**job, "spec": {**job["spec"], adapter.specs: specs}}, tuple(told)


def preserve_limits(job: Manifest, old: Manifest) -> Manifest:
    """The job with the limits that rover-kf has raised, where it states those before."""
    for limit in (MEMORY, CPU):
        job = _preserve(limit, job, old)
    return job


def _preserve(limit: ResourceLimit, job: Manifest, old: Manifest) -> Manifest:
    raised, adapter = limit.raised(old), adapter_for(job)
    before = {item.key: item for item in adapter.replicas(old)}
    specs = dict(job["spec"][adapter.specs])
    for item in adapter.replicas(job):
        known = raised.get(item.key)
        if known is None or item.key not in before:
            continue
        had = limit.limit_of(adapter.trainer(before[item.key]))
        if had == known.limit and limit.limit_of(adapter.trainer(item)) == known.stated:
            specs[item.key] = limit.replica(item, adapter, known.limit)
    return {**job, "spec": {**job["spec"], adapter.specs: specs}}


def _last_applied(job: Mapping[str, Any]) -> str | None:
    metadata = job.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    found = annotations.get(LAST_APPLIED) if isinstance(annotations, Mapping) else None
    return None if found is None else str(found)
