# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What TensorFlow and the Training Operator cannot do with a TFJob, refused by name.

docs/tfjob.md has what was seen of each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import Manifest
from rover_kf.api.policy import PolicySections
from rover_kf.job_kinds.job_kind import JobKind

_PORT = "tfjob-port"
"""The operator's name for the port of a TensorFlow process; 2222 if there is none."""
_DYNAMIC = "spec.enableDynamicWorker"
_SCALING_MAX_KEY = names.PREFIX + "scaling.max"
_SUSPEND = (
    "Set spec.runPolicy.suspend to true, wait until its pods are gone, then change it and resume"
)


def check_tfjob(job_kind: JobKind, manifest: Manifest, policy: PolicySections, source: str) -> None:
    """Refuse a TFJob that could not train.

    Raises:
        ManifestError: its replica types do not go together, or its workers come and go where they
            cannot.
        PolicyError: a wish that needs a world of another size, or torch.
    """
    counts = {item.kind: item.replicas for item in job_kind.replicas(manifest)}
    if "ps" in counts and not job_kind.masters(manifest):
        allowed = "a Chief beside PS: its program drives TensorFlow 2's ParameterServerStrategy"
        raise errors.ManifestError(
            f"spec.{job_kind.specs}.Chief", None, allowed=allowed, source=source
        )
    if "ps" in counts and "worker" not in counts:
        allowed = "at least one Worker beside PS: the chief's program trains on workers alone"
        raise errors.ManifestError(
            f"spec.{job_kind.specs}.Worker", None, allowed=allowed, source=source
        )
    if is_dynamic(manifest):
        _check_dynamic(policy, counts, source)
    _check_policy(policy, counts, source)
    _check_shards(policy.checkpoint.shards, counts, source, dynamic=is_dynamic(manifest))


def is_dynamic(manifest: Manifest) -> bool:
    """Whether its workers come and go, each a client of its own."""
    return bool(manifest["spec"].get("enableDynamicWorker"))


def dynamic_cluster_spec(job_kind: JobKind, manifest: Manifest, most_workers: int) -> str:
    """The addresses of all processes that such a job may ever have, as JSON.

    The kubelet puts job and namespace in, from variables that stand before this one.

    Args:
        job_kind: the kind TFJob.
        manifest: of the job.
        most_workers: that it may have.
    """
    found: dict[str, list[str]] = {}
    for item in job_kind.replicas(manifest):
        if item.kind == "evaluator":
            continue
        ports = job_kind.trainer(item).get("ports") or ()
        port = next((one["containerPort"] for one in ports if one.get("name") == _PORT), 2222)
        host = f"$({names.ENV_JOB})-{item.kind}-%d.$({names.ENV_NAMESPACE}).svc:{port}"
        count = most_workers if item.kind == "worker" else item.replicas
        found[item.kind] = [host % index for index in range(count)]
    return json.dumps(found, sort_keys=True)


def check_update(job_kind: JobKind, old: Manifest, new: Manifest, source: str) -> None:
    """Refuse a change of size while the job runs.

    Raises:
        ManifestError: replicas were changed, or a type of them, and the job is not suspended; but
            for workers that come and go.
    """
    policy = old["spec"].get("runPolicy") or {}
    if policy.get("suspend"):
        return
    dynamic = is_dynamic(old)
    if dynamic != is_dynamic(new):
        allowed = f"{str(dynamic).lower()} while the job runs: {_SUSPEND}"
        raise errors.ManifestError(_DYNAMIC, not dynamic, allowed=allowed, source=source)
    if dynamic and _scaling_max(old) != _scaling_max(new):
        allowed = (
            f"{_scaling_max(old)} while the job runs: its PS were started with the "
            "addresses of so many "
            f"workers. {_SUSPEND}"
        )
        raise errors.PolicyError(
            _SCALING_MAX_KEY, _scaling_max(new), allowed=allowed, source=source
        )
    before = {item.key: item.replicas for item in job_kind.replicas(old)}
    after = {item.key: item.replicas for item in job_kind.replicas(new)}
    for key in (*before, *(key for key in after if key not in before)):
        if before.get(key) == after.get(key):
            continue
        if dynamic and key.lower() == "worker" and before.get(key) and after.get(key):
            continue  # up to scaling.max, which is looked at with the job's bounds
        allowed = (
            f"{before.get(key, 0)} while the job runs: every process was told the cluster's size "
            f"when it started, and the operator fails a TFJob that loses a pod. {_SUSPEND}"
        )
        path = f"spec.{job_kind.specs}.{key}.replicas"
        raise errors.ManifestError(path, after.get(key), allowed=allowed, source=source)


def _check_dynamic(policy: PolicySections, counts: Mapping[str, int], source: str) -> None:
    if "ps" not in counts:
        allowed = (
            "false, or PS beside the workers: mirrored workers hold each other's gradients, and "
            "none can leave alone"
        )
        raise errors.ManifestError(_DYNAMIC, True, allowed=allowed, source=source)  # noqa: FBT003
    if policy.scaling.max is None:
        allowed = (
            f"a number, {counts['worker']} or more, with {_DYNAMIC}: PS are started with the "
            "addresses of all workers that may come"
        )
        _refuse("scaling.max", None, allowed, source)


def _scaling_max(job: Manifest) -> str | None:
    found = (job["metadata"].get("annotations") or {}).get(_SCALING_MAX_KEY)
    return None if found is None else str(found)


def _check_policy(policy: PolicySections, counts: Mapping[str, int], source: str) -> None:
    fixed, workers = "TF_CONFIG fixes a TFJob's size while it runs", counts.get("worker", 0)
    if policy.scaling.mode == "auto" and "ps" not in counts:
        _refuse("scaling.mode", "auto", f"off or recommend: {fixed}", source)
    for key, value in (("scaling.min", policy.scaling.min), ("scaling.max", policy.scaling.max)):
        # With PS their number changes while all pods are gone.
        if value is not None and value != workers and "ps" not in counts:
            _refuse(key, value, f"{workers}, the job's Worker replicas: {fixed}", source)
    _check_servers(policy, counts.get("ps", 0), source)
    if policy.checkpoint.peer_copy == "on" and "ps" not in counts:
        why = "the copy goes to a PS, and mirrored workers keep copies of each other's state"
        _refuse("checkpoint.peer-copy", "on", f"off, or PS in the job: {why}", source)
    if policy.preflight.mode != "off":
        _refuse("preflight.mode", policy.preflight.mode, "off: the check needs torch", source)


def _check_servers(policy: PolicySections, servers: int, source: str) -> None:
    most = policy.scaling.ps_max
    if most is None or 0 < servers <= most:
        return
    allowed = f"{servers}, the job's PS replicas, or more" if servers else "nothing without PS"
    _refuse("scaling.ps-max", most, allowed, source)


def _check_shards(
    shards: str | None, counts: Mapping[str, int], source: str, *, dynamic: bool
) -> None:
    if shards is None:
        return
    if "ps" not in counts:
        why = "without them no variables are on other processes than the one that saves"
        _refuse("checkpoint.shards", shards, f"nothing, or PS in the job: {why}", source)
    if dynamic:
        why = "the chief's session reads the variables of such a job one after the other"
        _refuse("checkpoint.shards", shards, f"nothing with {_DYNAMIC}: {why}", source)


def _refuse(key: str, value: object, allowed: str, source: str) -> None:
    raise errors.PolicyError(names.PREFIX + key, value, allowed=allowed, source=source)
