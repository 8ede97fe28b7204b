# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job's conditions from its pods, as the Training Operator v1.9 concludes; pure.

Source: pkg/controller.v1/pytorch/pytorchjob_controller.go (UpdateJobStatus) and
pkg/controller.v1/common/job.go (PastBackoffLimit, PastActiveDeadline). Used by ``operator``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rover_kf.api.jobs import Manifest
from rover_kf.cluster.local import environment, local_admission

RETRYABLE = 128
"""Exit codes from here on are retried under restartPolicy ExitCode."""


@dataclasses.dataclass(frozen=True, slots=True)
class PodOutcome:
    """What counts of one pod."""

    replica_type: str
    phase: str
    deleting: bool
    restarts: int
    exit_code: int | None
    """Of the container ``pytorch``."""


@dataclasses.dataclass(frozen=True, slots=True)
class JobCondition:
    """The condition to add; type "" adds none."""

    type: str = ""
    reason: str = ""
    message: str = ""
    by_limit: bool = False
    """A limit of its runPolicy ends the job, and all its pods with it."""


def derive_condition(manifest: Manifest, pods: Sequence[PodOutcome], *, age: float) -> JobCondition:
    """Conclude about a job that is neither suspended nor finished.

    Args:
        manifest: the job.
        pods: its pods now.
        age: seconds since its start.
    """
    name = manifest["metadata"]["name"]
    policy = manifest["spec"].get("runPolicy") or {}
    limit, deadline = policy.get("backoffLimit"), policy.get("activeDeadlineSeconds")
    restarts = sum(pod.restarts for pod in pods if pod.phase == "Running")
    if limit is not None and restarts >= max(int(limit), 1):
        message = f"{name} has failed because it has reached the specified backoff limit"
        return JobCondition("Failed", "PyTorchJobFailed", message, by_limit=True)
    if deadline is not None and age >= float(deadline):
        message = f"{name} has failed because it was active longer than specified deadline"
        return JobCondition("Failed", "PyTorchJobFailed", message, by_limit=True)
    found = JobCondition()
    for kind, replica in manifest["spec"][local_admission.SPECS].items():
        verdict = _of_replicas(manifest, kind.lower(), replica, pods)
        if verdict.type in ("Succeeded", "Failed"):
            return verdict
        found = verdict if verdict.type else found
    return found


def _of_replicas(
    manifest: Manifest, kind: str, replica: Mapping[str, Any], pods: Sequence[PodOutcome]
) -> JobCondition:
    name, counts = manifest["metadata"]["name"], environment.replica_counts(manifest)
    mine = [pod for pod in pods if pod.replica_type == kind]
    succeeded = sum(pod.phase == "Succeeded" for pod in mine)
    running = sum(pod.phase == "Running" and not pod.deleting for pod in mine)
    failed = [pod for pod in mine if pod.phase == "Failed" or (pod.deleting and not _done(pod))]
    decides = kind == "master" or "master" not in counts
    elastic = bool(manifest["spec"].get("elasticPolicy")) and kind == "worker"
    if decides and (succeeded >= counts[kind] or (elastic and succeeded > 0)):
        message = f"PyTorchJob {name} is successfully completed."
        return JobCondition("Succeeded", "PyTorchJobSucceeded", message)
    if failed and counts[kind] > succeeded + running:
        policy = replica.get("restartPolicy") or "OnFailure"
        codes = [pod.exit_code for pod in failed if pod.phase == "Failed" and not pod.deleting]
        permanent = [code for code in codes if code is not None and code < RETRYABLE]
        if policy == "Never" or (policy == "ExitCode" and permanent):
            why = f" with exit code {permanent[0]}" if permanent else ""
            message = f"PyTorchJob {name} is failed because {len(failed)} {kind} replica(s) failed"
            return JobCondition("Failed", "PyTorchJobFailed", f"{message}{why}.")
        message = f"PyTorchJob {name} is restarting because {len(failed)} {kind} replica(s) failed."
        return JobCondition("Restarting", "PyTorchJobRestarting", message)
    if decides and running > 0:
        return JobCondition("Running", "PyTorchJobRunning", f"PyTorchJob {name} is running.")
    return JobCondition()


def _done(pod: PodOutcome) -> bool:
    return pod.phase == "Succeeded"


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
