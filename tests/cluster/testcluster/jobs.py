# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The digits sample as a job of a test, and looking at an injected job from outside."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import yaml

from testcluster import settings
from testcluster.cluster import Cluster
from testcluster.errors import ClusterError
from testcluster.objects import Object, job_conditions

SAMPLES = settings.REPOSITORY / "manifests" / "samples"
TOOLS = settings.REPOSITORY / "tests" / "cluster" / "scripts"
CLAIM = "digits-checkpoints"
HURRY = "hurry"
"""File in that claim: scripts of TOOLS that were slow are slow no more."""
_PORT = 7411
_SPECS = {"PyTorchJob": "pytorchReplicaSpecs", "TFJob": "tfReplicaSpecs"}
_TRAINERS = {"PyTorchJob": "pytorch", "TFJob": "tensorflow"}


def digits(namespace: str, *options: str, traced: bool = True) -> Object:
    """The PyTorchJob of manifests/samples/digits.yaml, its command followed by these options.

    Args:
        namespace: where it goes.
        options: of digits.py; a later one wins over the sample's.
        traced: run it through scripts/traced.py, which tells every state's digest.
    """
    documents = yaml.safe_load_all((SAMPLES / "digits.yaml").read_text())
    job: Object = next(item for item in documents if item["kind"] == "PyTorchJob")
    job["metadata"]["namespace"] = namespace
    container = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    program, script, *given = container["command"]
    wrapped = ["/tools/traced.py", script] if traced else [script]
    container["command"] = [program, *wrapped, *given, *options]
    return job


@dataclasses.dataclass(frozen=True, slots=True)
class RunningJob:
    """A PyTorchJob or TFJob on a cluster."""

    cluster: Cluster
    namespace: str
    name: str
    kind: str = "PyTorchJob"

    def read(self) -> Object:
        """The object as it stands."""
        plural = f"{self.kind.lower()}s"
        path = f"/apis/kubeflow.org/v1/namespaces/{self.namespace}/{plural}/{self.name}"
        return json.loads(self.cluster.get_raw(path))

    def conditions(self) -> set[str]:
        """Types of its true conditions."""
        return job_conditions(self.read())

    def verdict(self) -> str:
        """``Succeeded`` or ``Failed`` once it has ended, else nothing."""
        return "".join(self.conditions() & {"Succeeded", "Failed"})

    def pods(self) -> dict[str, Object]:
        """Its pods by name."""
        selector = f"training.kubeflow.org/job-name={self.name}"
        path = f"/api/v1/namespaces/{self.namespace}/pods?labelSelector={selector}"
        items = json.loads(self.cluster.get_raw(path))["items"]
        return {item["metadata"]["name"]: item for item in items}

    def status(self) -> dict[str, Any]:
        """What the coordinator says, through the API server; empty while it does not answer."""
        specs = self.read()["spec"][_SPECS[self.kind]]
        first = next((kind for kind in ("Master", "Chief") if kind in specs), "Worker")
        pod = f"{self.name}-{first.lower()}-0"
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}:{_PORT}/proxy/v1/status"
        try:
            return json.loads(self.cluster.get_raw(path))
        except ClusterError:
            return {}

    def log(self, pod: str) -> str:
        """What the trainer of a pod has printed; empty before it starts."""
        trainer = _TRAINERS[self.kind]
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/log?container={trainer}"
        try:
            return self.cluster.get_raw(path).decode(errors="replace")
        except ClusterError:
            return ""

    def traces(self, pod: str, verb: str) -> list[tuple[int, str, str]]:
        """(step, digest, source) of the trace lines of that verb, in order."""
        lines = [line.split() for line in self.log(pod).splitlines() if f"trace {verb} " in line]
        parts = [line[line.index("trace") :] for line in lines]
        return [(int(part[2]), part[3], part[5] if len(part) > 5 else "") for part in parts]

    def events(self) -> list[Object]:
        """Events on the job, oldest first."""
        selector = f"involvedObject.name={self.name}"
        path = f"/api/v1/namespaces/{self.namespace}/events?fieldSelector={selector}"
        return json.loads(self.cluster.get_raw(path))["items"]

    def told(self, reason: str) -> list[str]:
        """Messages of the Events of that reason, oldest first."""
        return [event["message"] for event in self.events() if event["reason"] == reason]
