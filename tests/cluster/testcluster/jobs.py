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
from testcluster.errors import CommandFailed
from testcluster.objects import Object, get, job_conditions

SAMPLES = settings.REPOSITORY / "manifests" / "samples"
TOOLS = settings.REPOSITORY / "tests" / "cluster" / "scripts"
CLAIM = "digits-checkpoints"
_PORT = 7411


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
    """A PyTorchJob on a cluster."""

    cluster: Cluster
    namespace: str
    name: str

    def read(self) -> Object:
        """The object as it stands."""
        return get(self.cluster, self.namespace, "pytorchjob", self.name)

    def conditions(self) -> set[str]:
        """Types of its true conditions."""
        return job_conditions(self.read())

    def verdict(self) -> str:
        """``Succeeded`` or ``Failed`` once it has ended, else nothing."""
        return "".join(self.conditions() & {"Succeeded", "Failed"})

    def pods(self) -> dict[str, Object]:
        """Its pods by name."""
        selector = f"training.kubeflow.org/job-name={self.name}"
        words = ("-n", self.namespace, "get", "pods", "-l", selector, "-o", "json")
        items = json.loads(self.cluster.kubectl(*words))["items"]
        return {item["metadata"]["name"]: item for item in items}

    def status(self, pod: str = "") -> dict[str, Any]:
        """What the coordinator says, through the API server; empty while it does not answer."""
        pod = pod or f"{self.name}-worker-0"
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}:{_PORT}/proxy/v1/status"
        try:
            return json.loads(self.cluster.kubectl("get", "--raw", path, timeout=30))
        except CommandFailed:
            return {}

    def log(self, pod: str) -> str:
        """What the trainer of a pod has printed; empty before it starts."""
        words = ("-n", self.namespace, "logs", pod, "-c", "pytorch")
        try:
            return self.cluster.kubectl(*words)
        except CommandFailed:
            return ""

    def traces(self, pod: str, verb: str) -> list[tuple[int, str, str]]:
        """(step, digest, source) of the trace lines of that verb, in order."""
        lines = [line.split() for line in self.log(pod).splitlines() if f"trace {verb} " in line]
        parts = [line[line.index("trace") :] for line in lines]
        return [(int(part[2]), part[3], part[5] if len(part) > 5 else "") for part in parts]

    def events(self) -> list[Object]:
        """Events on the job, oldest first."""
        selector = f"involvedObject.name={self.name}"
        words = ("-n", self.namespace, "get", "events", "--field-selector", selector, "-o", "json")
        return json.loads(self.cluster.kubectl(*words))["items"]
