# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A TFJob in memory: a chief, two workers and a PS, each server with a sidecar of its own."""

from __future__ import annotations

import copy
import dataclasses

from memory_cluster import KEY, MemoryCluster, manifest

from rover_kf import errors
from rover_kf.api import codec, names
from rover_kf.api.faults.limit_raises import CpuUse, OomKill
from rover_kf.api.jobs import ContainerStatus, Event, JobKey, ObservedJob, Pod
from rover_kf.api.status import Ack

OURS = JobKey(KEY.namespace, KEY.name, "TFJob")
LIMITS = {"memory": "512Mi", "cpu": "200m"}
COUNTS = {"Chief": 1, "Worker": 2, "PS": 1}
DIED = "TrainingProcessFailed"


def tfjob(**annotations):
    """A Chief, two workers, a PS, each with a limit of 512 MiB that may become 2 GiB."""
    told = {"memory.max": "2Gi", **annotations}
    given = manifest(annotations={names.PREFIX + key: value for key, value in told.items()})
    given["kind"] = "TFJob"
    worker = given["spec"].pop("pytorchReplicaSpecs")["Worker"]
    (container,) = worker["template"]["spec"]["containers"]
    container |= {"name": "tensorflow", "resources": {"limits": dict(LIMITS)}}
    sizes = {"scaling.mode": "off", "scaling.min": "2", "scaling.max": "2", **annotations}
    given["metadata"]["annotations"] |= {names.PREFIX + key: value for key, value in sizes.items()}
    specs = {kind: {**copy.deepcopy(worker), "replicas": count} for kind, count in COUNTS.items()}
    given["spec"]["tfReplicaSpecs"] = specs
    return given


class TensorFlowCluster(MemoryCluster):
    """Each server's sidecar has a story and kills of its own."""

    def __init__(self, clock, **annotations):
        self.given = tfjob(**annotations)
        super().__init__(clock, self.given)
        self.key = OURS
        self.pods = tuple(
            pod_of(kind.lower(), index) for kind, count in COUNTS.items() for index in range(count)
        )
        self.stories: dict[str, list[Event]] = {pod.name: [] for pod in self.pods}
        self.began = dict.fromkeys(self.stories, 1.0)
        self.kills: dict[str, OomKill] = {}
        self.asked: list[str] = []
        self.silent_pods: set[str] = set()
        self.can_resize = True
        self.cpu: dict[str, CpuUse] = {}
        self.resized: list[tuple[str, str]] = []
        self.refuses = ""

    def get_job(self, key):
        if self.manifest is None or key != self.key:
            raise errors.NoSuchJob(str(key))
        given = copy.deepcopy(self.manifest)
        replicas = {
            kind.lower(): spec["replicas"] for kind, spec in given["spec"]["tfReplicaSpecs"].items()
        }
        version = str(self.version)
        suspended = bool((given["spec"].get("runPolicy") or {}).get("suspend"))
        return ObservedJob(
            self.key, self.uid, version, given, replicas, self.phase, suspended=suspended
        )

    def call_coordinator(self, key, method, path, body=None, *, pod=None):
        if pod is None:
            return super().call_coordinator(key, method, path, body)
        self.asked.append(pod.name)
        if pod.name in self.silent_pods:
            raise errors.ClusterUnavailable(f"{pod.name} does not answer")
        if method == "POST":
            self._point("post")
            self._renewed(pod.name, body)
            return codec.dumps(Ack())
        after = int(path.partition("after=")[2])
        kill = self.kills.get(pod.name)
        return codec.dumps(
            dataclasses.replace(
                self._status(0),
                started_at=self.began[pod.name],
                events=tuple(one for one in self.stories[pod.name] if one.sequence > after),
                oom_kills=(kill,) if kill else (),
                cpu=self.cpu.get(pod.name),
            )
        )

    def tell(self, pod, reason=DIED, *, warning=True):
        story = self.stories[pod]
        at = self.clock()
        story.append(Event(reason, f"{pod}: it died", warning, at, len(story) + 1, pod))

    def node_sizes(self, resource):
        return {"cpu": ("4",), "memory": ("8Gi",)}[resource]

    def supports_pod_resize(self):
        return self.can_resize

    def resize_pod(self, _, pod, container, resources):
        self._point("resize")
        if self.refuses:
            raise errors.InputError(self.refuses)
        ((resource, limit),) = resources["limits"].items()
        self.resized.append((pod.name, limit))
        (had,) = pod.containers
        assert had.name == container
        has = dataclasses.replace(had, **{f"{resource}_limit": limit})
        changed = dataclasses.replace(pod, containers=(has,))
        self.pods = tuple(changed if one.name == pod.name else one for one in self.pods)

    def limits(self, resource="memory"):
        return {
            kind: spec["template"]["spec"]["containers"][0]["resources"]["limits"][resource]
            for kind, spec in self.manifest["spec"]["tfReplicaSpecs"].items()
        }

    def _replicas(self):
        return 1  # of the world: the chief


def pod_of(kind, index):
    container = ContainerStatus("tensorflow", running=True, memory_limit="512Mi", cpu_limit="200m")
    name = f"digits-{kind}-{index}"
    return Pod(
        name, f"uid-{name}", kind, index, "Running", "10.0.0.1", "one", containers=(container,)
    )
