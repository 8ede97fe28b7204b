# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job's status from its pods, as the Training Operator v1.9 concludes, and its frozen view; pure.

Source: pkg/controller.v1/pytorch/pytorchjob_controller.go (UpdateJobStatus) and
pkg/controller.v1/common/job.go (PastBackoffLimit, PastActiveDeadline). Used by ``operator`` and
``cluster``.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import pathlib
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from rover_kf.api import names
from rover_kf.api.jobs import JobKey, Manifest, ObservedJob, Pod
from rover_kf.cluster.kubernetes.conversion import parse_job
from rover_kf.cluster.local import local_admission, pod_spec
from rover_kf.cluster.local.store import Record

RETRYABLE = 128
"""Exit codes from here on are retried under restartPolicy ExitCode."""


@dataclasses.dataclass(frozen=True, slots=True)
class JobCondition:
    """The condition to add; type "" adds none."""

    type: str = ""
    message: str = ""
    by_limit: bool = False
    """A limit of its runPolicy ends the job, and all its pods with it."""

    @property
    def reason(self) -> str:
        """Of the condition and of its Event."""
        return f"PyTorchJob{self.type}"


def derive_condition(manifest: Manifest, pods: Sequence[Pod], *, age: float) -> JobCondition:
    """Conclude about a job, seconds after its start, that is neither suspended nor finished."""
    name = manifest["metadata"]["name"]
    policy = manifest["spec"].get("runPolicy") or {}
    limit, deadline = policy.get("backoffLimit"), policy.get("activeDeadlineSeconds")
    running = (pod for pod in pods if pod.phase == "Running")
    restarts = sum(container.restarts for pod in running for container in pod.containers)
    if limit is not None and restarts >= max(int(limit), 1):
        message = f"{name} has failed because it has reached the specified backoff limit"
        return JobCondition("Failed", message, by_limit=True)
    if deadline is not None and age >= float(deadline):
        message = f"{name} has failed because it was active longer than specified deadline"
        return JobCondition("Failed", message, by_limit=True)
    found = JobCondition()
    for kind, replica in manifest["spec"][local_admission.SPECS].items():
        verdict = _of_replicas(manifest, kind.lower(), replica, pods)
        if verdict.type in ("Succeeded", "Failed"):
            return verdict
        found = verdict if verdict.type else found
    return found


def exit_code(pod: Pod) -> int | None:
    """Return the last exit code of a pod's trainer."""
    return next((c.exit_code for c in pod.containers if c.name == names.PYTORCH_CONTAINER), None)


def _of_replicas(
    manifest: Manifest, kind: str, replica: Mapping[str, Any], pods: Sequence[Pod]
) -> JobCondition:
    name, counts = manifest["metadata"]["name"], pod_spec.replica_counts(manifest)
    mine = [pod for pod in pods if pod.replica_type == kind]
    succeeded = sum(pod.phase == "Succeeded" for pod in mine)
    running = sum(pod.phase == "Running" and not pod.deleting for pod in mine)
    failed = [
        pod for pod in mine if pod.phase == "Failed" or (pod.deleting and pod.phase != "Succeeded")
    ]
    decides = kind == "master" or "master" not in counts
    elastic = bool(manifest["spec"].get("elasticPolicy")) and kind == "worker"
    if decides and (succeeded >= counts[kind] or (elastic and succeeded > 0)):
        message = f"PyTorchJob {name} is successfully completed."
        return JobCondition("Succeeded", message)
    if failed and counts[kind] > succeeded + running:
        policy = replica.get("restartPolicy") or "OnFailure"
        codes = [exit_code(pod) for pod in failed if pod.phase == "Failed" and not pod.deleting]
        permanent = [code for code in codes if code is not None and code < RETRYABLE]
        if policy == "Never" or (policy == "ExitCode" and permanent):
            why = f" with exit code {permanent[0]}" if permanent else ""
            message = f"PyTorchJob {name} is failed because {len(failed)} {kind} replica(s) failed"
            return JobCondition("Failed", f"{message}{why}.")
        message = f"PyTorchJob {name} is restarting because {len(failed)} {kind} replica(s) failed."
        return JobCondition("Restarting", message)
    if decides and running > 0:
        return JobCondition("Running", f"PyTorchJob {name} is running.")
    return JobCondition()


def add_condition(
    conditions: Sequence[Mapping[str, Any]], verdict: JobCondition, timestamp: str
) -> list[dict[str, Any]]:
    """Conditions with the verdict's as the last true one; unchanged if it is so already."""
    found = [dict(condition) for condition in conditions]
    last = next((c for c in reversed(found) if c["status"] == "True"), None)
    if not verdict.type or (last is not None and last["type"] == verdict.type):
        return found
    ends = {
        "Running": {"Restarting", "Suspended"},
        "Restarting": {"Running"},
        "Suspended": {"Running", "Restarting"},
        "Succeeded": {"Running", "Restarting"},
        "Failed": {"Running", "Restarting"},
    }
    for condition in found:
        if condition["type"] in ends.get(verdict.type, set()) and condition["status"] == "True":
            condition |= {"status": "False", "lastTransitionTime": timestamp}
    found = [condition for condition in found if condition["type"] != verdict.type]
    entry = {"type": verdict.type, "status": "True", "reason": verdict.reason}
    return [*found, {**entry, "message": verdict.message, "lastTransitionTime": timestamp}]


def format_time(timestamp: float) -> str:
    """Unix seconds as Kubernetes writes times."""
    return dt.datetime.fromtimestamp(timestamp, dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def new_record(
    manifest: Mapping[str, Any], folder: pathlib.Path, now: float
) -> tuple[JobKey, Record]:
    """Return a new job with its key; its relative scripts are found in the folder."""
    metadata = {
        **manifest["metadata"],
        "namespace": manifest["metadata"].get("namespace", "default"),
        "uid": str(uuid.uuid4()),
        "creationTimestamp": format_time(now),
    }
    key = JobKey(metadata["namespace"], metadata["name"], manifest["kind"])
    record = Record({**json.loads(json.dumps(manifest)), "metadata": metadata}, str(folder), now)
    record.manifest.pop("status", None)
    created = JobCondition("Created", f"PyTorchJob {key.name} is created.")
    return key, with_condition(record, created)


def with_condition(record: Record, verdict: JobCondition) -> Record:
    """The record with a verdict's condition; a finished job stays as it is."""
    if record.finished_at is not None:
        return record
    now = time.time()
    status = record.manifest.get("status") or {}
    conditions = status.get("conditions") or []
    if verdict.type != "Suspended":
        conditions = [
            c | {"status": "False"} if c["type"] == "Suspended" else c for c in conditions
        ]
    status = {**status, "conditions": add_condition(conditions, verdict, format_time(now))}
    ended = verdict.type in ("Succeeded", "Failed")
    if ended:
        status["completionTime"] = format_time(now)
    return dataclasses.replace(
        record,
        manifest={**record.manifest, "status": status},
        finished_at=now if ended else None,
    )


def with_counts(record: Record, pods: Sequence[Pod]) -> Record:
    """The record with replicaStatuses counted anew."""
    counts: dict[str, dict[str, int]] = {}
    for pod in pods:
        kind = pod.replica_type.capitalize()
        field = {"Succeeded": "succeeded", "Failed": "failed"}.get(pod.phase, "active")
        one = counts.setdefault(kind, {})
        one[field] = one.get(field, 0) + 1
    status = {**(record.manifest.get("status") or {}), "replicaStatuses": counts}
    return dataclasses.replace(record, manifest={**record.manifest, "status": status})


def to_observed_job(record: Record) -> ObservedJob:
    """The frozen view of a stored job, whose record has more exact times than its manifest."""
    return dataclasses.replace(
        parse_job(record.manifest),
        deleting=record.deleting,
        created_at=record.created_at,
        finished_at=record.finished_at,
    )


def merge(target: Any, patch: Any) -> Any:
    """JSON merge patch (RFC 7386); neither argument is changed."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge(result.get(name), value)
    return result
