# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A stored job's status and its frozen view; pure; used by ``operator`` and ``cluster``."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import pathlib
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from rover_kf.api.jobs import JobKey, ObservedJob, Pod
from rover_kf.cluster.local import environment
from rover_kf.cluster.local.job_conditions import JobCondition, add_condition
from rover_kf.cluster.local.store import Record


def format_time(timestamp: float) -> str:
    """Unix seconds as Kubernetes writes times."""
    return dt.datetime.fromtimestamp(timestamp, dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def new_record(
    manifest: Mapping[str, Any], folder: pathlib.Path, now: float
) -> tuple[JobKey, Record]:
    """A job that was just created, with its key.

    Args:
        manifest: as it was given.
        folder: where its relative scripts are found.
        now: Unix seconds.
    """
    metadata = {
        **manifest["metadata"],
        "namespace": manifest["metadata"].get("namespace", "default"),
        "uid": str(uuid.uuid4()),
        "creationTimestamp": format_time(now),
    }
    key = JobKey(metadata["namespace"], metadata["name"], manifest["kind"])
    record = Record({**json.loads(json.dumps(manifest)), "metadata": metadata}, str(folder), now)
    record.manifest.pop("status", None)
    created = JobCondition("Created", "PyTorchJobCreated", f"PyTorchJob {key.name} is created.")
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


def to_observed_job(key: JobKey, record: Record) -> ObservedJob:
    """The frozen view of a stored job."""
    manifest = record.manifest
    conditions = (manifest.get("status") or {}).get("conditions") or []
    true = [condition["type"] for condition in conditions if condition["status"] == "True"]
    return ObservedJob(
        key=key,
        uid=manifest["metadata"]["uid"],
        resource_version=record.resource_version,
        manifest=manifest,
        replicas=environment.replica_counts(manifest),
        phase=true[-1] if true else "",
        suspended=bool((manifest["spec"].get("runPolicy") or {}).get("suspend")),
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
