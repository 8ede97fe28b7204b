# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Small jobs for tests of the embedded cluster."""

from __future__ import annotations

from rover_kf.api import names

FOREVER = "trap 'exit 143' TERM; echo ready; while :; do sleep 0.05; done"


def container(script, **more):
    return {"name": "pytorch", "image": "none", "command": ["sh", "-c", script], **more}


def replica(script, *, replicas=1, policy=None, pod=None, **more):
    spec = {"containers": [container(script, **more)], **(pod or {})}
    found = {"replicas": replicas, "template": {"spec": spec}}
    return found if policy is None else {**found, "restartPolicy": policy}


def job(name="job", master=None, worker=None, **spec):
    specs = {}
    if master:
        specs["Master"] = master
    if worker:
        specs["Worker"] = worker
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "labels": {names.INJECT_LABEL: "true"}},
        "spec": {"pytorchReplicaSpecs": specs, **spec},
    }
