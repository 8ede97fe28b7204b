# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Variables as the Training Operator and the kubelet set them; pure; used by ``plan``.

Source: the Training Operator v1.9, pkg/controller.v1/pytorch/{envvar,master,elastic}.go. The
operator's variables go to ``containers`` only, after the user's own: an init container has none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rover_kf.api import names
from rover_kf.api.jobs import Manifest
from rover_kf.cluster.local import local_admission

_PORT = 23456


def replica_counts(manifest: Manifest) -> dict[str, int]:
    """Replicas by type in lower case, with the operator's default of one."""
    specs = manifest["spec"][local_admission.SPECS]
    return {kind.lower(): int(spec.get("replicas", 1)) for kind, spec in specs.items()}


def operator_environment(manifest: Manifest, replica_type: str, index: int) -> dict[str, str]:
    """What the operator appends to each container of a replica.

    Args:
        manifest: the job.
        replica_type: ``master`` or ``worker``.
        index: of the replica.
    """
    spec, job = manifest["spec"], manifest["metadata"]["name"]
    counts = replica_counts(manifest)
    found = {"PYTHONUNBUFFERED": "1"}
    processes = str(spec.get("nprocPerNode", "auto"))
    if "master" in counts:
        rank = index + (counts["master"] if replica_type == "worker" else 0)
        nodes = sum(counts.values())
        each = int(processes) if processes.isdecimal() else 1
        address, port = f"{job}-master-0", str(_port(spec[local_admission.SPECS]["Master"]))
        found |= {
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
            "PET_MASTER_ADDR": address,
            "PET_MASTER_PORT": port,
            "WORLD_SIZE": str(nodes * each),
            "RANK": str(rank),
            "PET_NODE_RANK": str(rank),
            "PET_NNODES": str(nodes),
        }
    found["PET_NPROC_PER_NODE"] = processes
    if spec.get("elasticPolicy"):
        found |= _elastic(manifest, counts.get("worker", 1))
    return found


def _elastic(manifest: Manifest, workers: int) -> dict[str, str]:
    spec, job = manifest["spec"], manifest["metadata"]["name"]
    policy = spec["elasticPolicy"]
    least, most = policy.get("minReplicas", workers), policy.get("maxReplicas", workers)
    host = policy.get("rdzvHost", f"{job}-worker-0")
    port = policy.get("rdzvPort", _port(spec[local_admission.SPECS]["Worker"]))
    found = {
        "PET_NNODES": f"{least}:{most}",
        "PET_RDZV_BACKEND": policy.get("rdzvBackend", "c10d"),
        "PET_RDZV_ENDPOINT": f"{host}:{port}",
    }
    if policy.get("nProcPerNode"):
        found["PET_NPROC_PER_NODE"] = str(policy["nProcPerNode"])
    if policy.get("rdzvId"):
        found["PET_RDZV_ID"] = policy["rdzvId"]
    if policy.get("rdzvConf"):
        pairs = (f"{item['key']}={item['value']}" for item in policy["rdzvConf"])
        found["PET_RDZV_CONF"] = ",".join(pairs)
    if policy.get("maxRestarts") is not None:
        found["PET_MAX_RESTARTS"] = str(policy["maxRestarts"])
    if policy.get("standalone"):
        found["PET_STANDALONE"] = ""
    return found


def _port(replica: Mapping[str, Any]) -> int:
    for container in replica["template"]["spec"]["containers"]:
        for port in container.get("ports") or []:
            if port.get("name") == "pytorchjob-port":
                return int(port["containerPort"])
    return _PORT


def pod_fields(
    manifest: Manifest, pod: str, uid: str, address: str, labels: Mapping[str, str]
) -> dict[str, str]:
    """Values that a fieldRef may ask for, by its path."""
    fields = {
        "metadata.name": pod,
        "metadata.namespace": manifest["metadata"]["namespace"],
        "metadata.uid": uid,
        "status.podIP": address,
        "status.hostIP": "127.0.0.1",
        "spec.nodeName": "localhost",
        "spec.serviceAccountName": "default",
    }
    return fields | {f"metadata.labels['{key}']": value for key, value in labels.items()}


def pod_labels(manifest: Manifest, replica_type: str, index: int) -> dict[str, str]:
    """Labels that the operator puts on a pod."""
    kind = "Master" if replica_type == "master" else "Worker"
    template = manifest["spec"][local_admission.SPECS][kind]["template"]
    labels = dict((template.get("metadata") or {}).get("labels") or {})
    labels |= {
        names.JOB_NAME_LABEL: manifest["metadata"]["name"],
        "training.kubeflow.org/operator-name": "pytorchjob-controller",
        names.REPLICA_TYPE_LABEL: replica_type,
        names.REPLICA_INDEX_LABEL: str(index),
    }
    if replica_type == "master":
        labels["training.kubeflow.org/job-role"] = "master"
    return labels


def expand(text: str, variables: Mapping[str, str]) -> str:
    """``$(NAME)`` as the kubelet expands it: unknown names stay, ``$$(`` is a literal ``$(``."""

    def value(hit: re.Match[str]) -> str:
        if hit[0].startswith("$$"):
            return hit[0][1:]
        return variables.get(hit[1], hit[0])

    return re.sub(r"\$?\$\(([A-Za-z_][\w.-]*)\)", value, text)
