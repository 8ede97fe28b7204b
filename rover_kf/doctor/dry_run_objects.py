# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job, and the pod that the Training Operator would make of it, for dry runs; pure."""

from __future__ import annotations

import copy
import uuid
from typing import Any

from rover_kf.api import names
from rover_kf.api.jobs import Manifest
from rover_kf.job_kinds.pytorchjob.kind import PYTORCHJOB
from rover_kf.job_kinds.registry import kind_of

Object = dict[str, Any]

_IMAGE = "python:3.12-slim"


def example_job(namespace: str) -> Object:
    """A small job that fits the restricted profile, for who names none of their own."""
    container = {
        "name": PYTORCHJOB.container,
        "image": _IMAGE,
        "command": ["torchrun", "train.py"],
        "resources": {
            "requests": {"cpu": "100m", "memory": "256Mi"},
            "limits": {"memory": "256Mi"},
        },
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    user = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    pod = {"containers": [container], "securityContext": user}
    worker = {"replicas": 1, "restartPolicy": "OnFailure", "template": {"spec": pod}}
    return {
        "apiVersion": PYTORCHJOB.api_version,
        "kind": PYTORCHJOB.kind,
        "metadata": {"name": "example", "namespace": namespace},
        "spec": {
            "elasticPolicy": {"minReplicas": 1, "maxReplicas": 2},
            PYTORCHJOB.specs: {"Worker": worker},
        },
    }


def with_label(job: Manifest, namespace: str) -> Object:
    """The job as its owner would submit it: with the label, under a name that nobody has."""
    return _with_metadata(job, namespace, {names.INJECT_LABEL: "true"})


def without_label(job: Manifest, namespace: str) -> Object:
    """The job without the label, so that our webhook stays out of it."""
    return _with_metadata(job, namespace, {})


def _with_metadata(job: Manifest, namespace: str, label: dict[str, str]) -> Object:
    made = copy.deepcopy(dict(job))
    given = made["metadata"].get("labels") or {}
    kept = {key: value for key, value in given.items() if key != names.INJECT_LABEL}
    made["metadata"] = {
        "name": f"rover-kf-doctor-{uuid.uuid4().hex[:8]}",
        "namespace": namespace,
        "labels": {**kept, **label},
        "annotations": dict(made["metadata"].get("annotations") or {}),
    }
    return made


def replica_specs(job: Manifest) -> dict[str, Any]:
    """Replica types of a job of either kind, as the manifest writes them."""
    return dict(job["spec"][kind_of(job).specs])


def first_pods(job: Manifest, namespace: str) -> dict[str, Object]:
    """The first pod of each replica type, by its type."""
    return {
        kind: _make_pod(job, namespace, kind, spec) for kind, spec in replica_specs(job).items()
    }


def _make_pod(job: Manifest, namespace: str, kind: str, spec: Manifest) -> Object:
    template, name = copy.deepcopy(dict(spec["template"])), job["metadata"]["name"]
    given = template.get("metadata") or {}
    labels = {
        **(given.get("labels") or {}),
        names.JOB_NAME_LABEL: name,
        names.OPERATOR_NAME_LABEL: f"{job['kind'].lower()}-controller",
        names.REPLICA_TYPE_LABEL: kind.lower(),
        names.REPLICA_INDEX_LABEL: "0",
    }
    policy = spec.get("restartPolicy") or kind_of(job).restart_policy
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name}-{kind.lower()}-0",
            "namespace": namespace,
            "labels": labels,
            "annotations": dict(given.get("annotations") or {}),
        },
        "spec": {
            **template["spec"],
            "restartPolicy": "Never" if policy == "ExitCode" else policy,
        },
    }
