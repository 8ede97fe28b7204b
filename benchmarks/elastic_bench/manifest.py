# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The job as a user would write it, for both sides; pure."""

from __future__ import annotations

from typing import Any

SHARED = "/shared"
CLAIM = "shared"
SIDES = ("stock", "rover")

Object = dict[str, Any]

ANNOTATIONS = {
    "rover-kf.io/checkpoint.path": f"{SHARED}/rover",
    "rover-kf.io/checkpoint.every": "1",
    "rover-kf.io/checkpoint.arena": "64Mi",
    "rover-kf.io/scaling.mode": "off",
}
"""What the rover side states beside the label; all else is the default."""


def job(name: str, namespace: str, *, side: str, workers: int, master: bool = False) -> Object:
    """A PyTorchJob; its image is still to be filled in.

    Args:
        name: of the job.
        namespace: of it.
        side: of SIDES.
        workers: replicas of Worker.
        master: a Master beside them, and no elasticPolicy.
    """
    keep = "rover" if side == "rover" else "torch"
    command = ["torchrun", "workload.py", "--keep", keep]
    command += ["--checkpoints", f"{SHARED}/{name}/files", "--marks", f"{SHARED}/{name}/marks"]
    specs = {"Worker": _replica(name, workers, command)}
    spec: Object = {
        "nprocPerNode": "1",
        "runPolicy": {"cleanPodPolicy": "None"},
        "pytorchReplicaSpecs": specs,
    }
    if master:
        specs["Master"] = _replica(name, 1, command)
    else:
        # As in the Training Operator's own elastic example but for the least number, which is 1
        # there: while names are kept for half a minute, a stock first worker would begin alone,
        # and the world be whole only minutes later.
        limits = {"minReplicas": 2, "maxReplicas": 4, "maxRestarts": 100}
        spec["elasticPolicy"] = {"rdzvBackend": "c10d", **limits}
    metadata: Object = {"name": name, "namespace": namespace}
    if side == "rover":
        metadata["labels"] = {"rover-kf.io/inject": "true"}
        path = f"{SHARED}/{name}/rover"
        metadata["annotations"] = {**ANNOTATIONS, "rover-kf.io/checkpoint.path": path}
        if master:  # where no elasticPolicy says it
            metadata["annotations"]["rover-kf.io/scaling.max"] = "4"
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": metadata,
        "spec": spec,
    }


def _replica(name: str, count: int, command: list[str]) -> Object:
    container = {
        "name": "pytorch",
        "image": "filled-in-later",
        "command": list(command),
        # The nodes of the test cluster share their machine's cores: a thread for each of them in
        # every pod would wait for the others', spinning.
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        "resources": {"requests": {"cpu": "200m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
        "volumeMounts": [{"name": CLAIM, "mountPath": SHARED}],
    }
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"training.kubeflow.org/job-name": name}},
    }
    claim = {"name": CLAIM, "persistentVolumeClaim": {"claimName": CLAIM}}
    pod = {"containers": [container], "volumes": [claim], "topologySpreadConstraints": [spread]}
    return {"replicas": count, "restartPolicy": "OnFailure", "template": {"spec": pod}}
