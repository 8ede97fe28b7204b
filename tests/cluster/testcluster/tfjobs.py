# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""TFJobs of tests: the wide-and-deep sample and what its chief has printed; mirrored workers."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence

import yaml

from testcluster.jobs import SAMPLES, RunningJob
from testcluster.objects import Object
from tests.support.waiting import eventually

CLAIM, NAME = "wide-and-deep-checkpoints", "wide-and-deep"
COMING = "coming-workers"
HUNGER_MIB = 600
"""What a parameter server needs beside its limit's rest once it is told to."""
HOT_CPU, HOT_WIDTH, HOT_WINDOW = "100m", 32768, "5s"
"""A limit of cores, and how wide a layer makes a PS hot at it."""
_STARTS = re.compile(r"^starts after step (\d+) from (\w+): loss ([\d.]+)$", re.MULTILINE)
_DONE = re.compile(r"^done (\d+)$", re.MULTILINE)
_STEP = re.compile(r"^step (\d+) loss ([\d.]+)$", re.MULTILINE)


def wide_and_deep(namespace: str, steps: int, policy: Mapping[str, str] | None = None) -> Object:
    """The TFJob of manifests/samples/wide-and-deep.yaml; its PS becomes hungry at a SIGUSR1.

    Args:
        namespace: where it goes.
        steps: to train.
        policy: annotations without the prefix, beside the sample's.
    """
    job = _sample(NAME, namespace)
    told = {f"rover-kf.io/{key}": value for key, value in (policy or {}).items()}
    job["metadata"]["annotations"] |= told
    specs = job["spec"]["tfReplicaSpecs"]
    containers = {kind: spec["template"]["spec"]["containers"][0] for kind, spec in specs.items()}
    containers["Chief"]["command"][-1] = str(steps)
    program, *rest = containers["PS"]["command"]
    containers["PS"]["command"] = [program, "/tools/hungry_server.py", str(HUNGER_MIB), *rest]
    containers["PS"]["resources"]["limits"]["memory"] = "768Mi"
    containers["PS"]["resources"]["requests"]["memory"] = "768Mi"
    return job


def sharded(job: Object, path: str, servers: int) -> Object:
    """The same job, whose servers write their own variables to the claim of the checkpoints.

    Args:
        job: of ``wide_and_deep``; it is changed.
        path: of the folder on the claim.
        servers: how many there are.
    """
    job["metadata"]["annotations"]["rover-kf.io/checkpoint.shards"] = path
    specs = job["spec"]["tfReplicaSpecs"]
    chief, server = (specs[kind]["template"]["spec"] for kind in ("Chief", "PS"))
    server["volumes"] = copy.deepcopy(chief["volumes"])
    mounts = copy.deepcopy(chief["containers"][0]["volumeMounts"])
    server["containers"][0]["volumeMounts"] = mounts
    specs["PS"]["replicas"] = servers
    return job


def coming(namespace: str, epochs: int) -> Object:
    """The TFJob of manifests/samples/coming-workers.yaml.

    Args:
        namespace: where it goes.
        epochs: to train.
    """
    job = _sample(COMING, namespace)
    for spec in job["spec"]["tfReplicaSpecs"].values():
        spec["template"]["spec"]["containers"][0]["command"][-1] = str(epochs)
    return job


def _sample(name: str, namespace: str) -> Object:
    documents = yaml.safe_load_all((SAMPLES / f"{name}.yaml").read_text())
    job: Object = next(item for item in documents if item["kind"] == "TFJob")
    job["metadata"]["namespace"] = namespace
    return job


def hot(namespace: str, steps: int, policy: Mapping[str, str], kind: str = "PS") -> Object:
    """The same job with a wide layer, and pods that have too little of a core for it; it tells.

    Args:
        namespace: where it goes.
        steps: to train.
        policy: annotations without the prefix, beside the sample's.
        kind: of those pods.
    """
    told = {"scaling.window": HOT_WINDOW, "checkpoint.every": "20", **policy}
    job = telling(wide_and_deep(namespace, steps, told))
    specs = job["spec"]["tfReplicaSpecs"]
    specs["Chief"]["template"]["spec"]["containers"][0]["command"] += ["--width", str(HOT_WIDTH)]
    (slow,) = specs[kind]["template"]["spec"]["containers"]
    slow["resources"]["limits"]["cpu"] = HOT_CPU
    slow["resources"]["requests"]["cpu"] = "50m"
    return job


def telling(job: Object) -> Object:
    """The same job, of which each process runs through scripts/told.py: the chief tells each step.

    Args:
        job: of the sample; changed.
    """
    for spec in job["spec"]["tfReplicaSpecs"].values():
        command = spec["template"]["spec"]["containers"][0]["command"]
        command.insert(command.index("wide_and_deep.py"), "/tools/told.py")
    return job


def mirrored(namespace: str, workers: int, command: Sequence[str]) -> Object:
    """A TFJob of workers alone, each with the claim; their Keras is tf-keras.

    Args:
        namespace: where it goes.
        workers: how many.
        command: of each.
    """
    job = wide_and_deep(namespace, 1)
    specs = job["spec"]["tfReplicaSpecs"]
    worker = specs["Chief"] | {"replicas": workers}  # of the sample's types the one with the claim
    job["spec"] = {"runPolicy": {"cleanPodPolicy": "None"}, "tfReplicaSpecs": {"Worker": worker}}
    (container,) = worker["template"]["spec"]["containers"]
    container["command"] = list(command)
    container["env"] = [{"name": "TF_USE_LEGACY_KERAS", "value": "1"}]
    return job


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """A chief's program has begun to train."""

    step: int
    source: str
    loss: str


class Chief:
    """What the chief of a TFJob prints.

    Args:
        job: that it is of.
        patience: seconds to wait for anything; TensorFlow takes its time to load.
    """

    def __init__(self, job: RunningJob, patience: float) -> None:
        self._job, self._patience = job, patience

    @property
    def pod(self) -> str:
        """Its name."""
        return f"{self._job.name}-chief-0"

    def starts(self) -> list[Start]:
        """Of this pod's programs, one after the other."""
        found = _STARTS.findall(self._text())
        return [Start(int(step), source, loss) for step, source, loss in found]

    def losses(self) -> dict[int, str]:
        """By step, of all programs of this pod; of the last one that told."""
        return {int(step): loss for step, loss in _STEP.findall(self._text())}

    def step(self) -> int:
        """The newest step that its newest program has told; 0 while it has not."""
        newest = _STEP.findall(self._text().rpartition("starts after")[2])
        return int(newest[-1][0]) if newest and self.starts() else 0

    def done(self) -> int:
        """The newest step that a telling job's chief has told; 0 without its pod."""
        return max(map(int, _DONE.findall(self._text())), default=0)

    def reach(self, step: int) -> int:
        """Wait until its newest program has come so far; returns where it is."""
        return eventually(
            lambda: (now := self.step()) >= step and now,
            within=self._patience, every=0.3, what=f"the chief reaches step {step}",
        )  # fmt: skip

    def start_after(self, number: int) -> Start:
        """The start after so many; waits for it."""
        return eventually(
            lambda: (found := self.starts())[number:] and found[number],
            within=self._patience, every=0.3, what=f"start {number + 1} of the chief's program",
        )  # fmt: skip

    def result(self) -> dict[str, object]:
        """What its last program has told in the end; TensorFlow may have said more after that."""
        lines = self._text().splitlines()
        return json.loads(next(line for line in reversed(lines) if line.startswith("{")))

    def _text(self) -> str:
        return self._job.log(self.pod)
