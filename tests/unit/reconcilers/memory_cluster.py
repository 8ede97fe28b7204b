# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A cluster in memory with a training job of known speed, under a clock that tests turn.

It keeps the protocol's promises (merge patch, resource versions, missing jobs, an unreachable
coordinator). The crash of a controller is an exception of its own before or after any call.
"""

from __future__ import annotations

import copy

from rover_kf import errors
from rover_kf.api import codec, names
from rover_kf.api.cluster_capacity import NamespaceObjects
from rover_kf.api.jobs import Event, JobKey, ObservedJob
from rover_kf.api.membership import PodAddresses
from rover_kf.api.samples import Goodput, Throughput
from rover_kf.api.status import (
    Ack,
    CoordinatorStatus,
    ScaleRequest,
    ServerLostRequest,
    UnavailablePodsRequest,
)

KEY = JobKey("team", "digits")


class Killed(BaseException):
    """The controller is gone at this very point."""


class Clock:
    def __init__(self, now=10_000.0):
        self.now = now

    def __call__(self):
        return self.now


def manifest(workers=2, *, annotations=None, labels=None, spec=None, name=KEY.name):
    container = {
        "name": "pytorch",
        "image": "digits:1",
        "command": ["python", "train.py"],
        "resources": {"requests": {"cpu": "1", "memory": "2Gi"}},
    }
    worker = {"replicas": workers, "template": {"spec": {"containers": [container]}}}
    scaling = {"mode": "auto", "min": "1", "max": "3", "window": "10", "cooldown": "30"}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {
            "name": name,
            "namespace": KEY.namespace,
            "labels": {names.INJECT_LABEL: "true", **(labels or {})},
            "annotations": {
                **{f"{names.PREFIX}scaling.{key}": value for key, value in scaling.items()},
                **(annotations or {}),
            },
        },
        "spec": {"pytorchReplicaSpecs": {"Worker": worker}, **(spec or {})},
    }


class MemoryCluster:
    """One job; ``law(nodes)`` gives its seconds a step."""

    def __init__(self, clock, given=None, *, law=lambda k: 2.0 / k, batch=64.0, total=10_000):
        self.clock, self.law, self.batch, self.total = clock, law, batch, total
        self.manifest = given or manifest()
        name = self.manifest["metadata"]["name"]
        self.key = JobKey(KEY.namespace, name)
        self.version, self.uid, self.phase = 1, "uid-1", "Running"
        self.pods = ()
        self.silent_nodes = {}
        self.bounds, self.machines = NamespaceObjects(), None
        self.tried, self.would_refuse = [], ""
        self.renewed: list[tuple[str, str]] = []
        self.located = []
        self.cordoned, self.may_not = {}, ""
        self.reachable, self.finished_at = True, None
        self.story, self.coordinator_events = clock(), []
        self.events, self.posts, self.resizes, self.patches = [], [], [], 0
        self.expected = self.nodes = self._replicas()
        self.windows = []
        self.step = 0
        self.calls, self.kill_at, self.kill_after = 0, None, None
        self.operator_touches = False
        self.trains_with_fewer = False
        self.most = 100
        self.awaited_ranks, self.excused, self.deleted, self.stragglers = (), [], [], ()
        self.sealed, self.durable = None, None

    # -- the protocol ----------------------------------------------------------------------------

    def get_job(self, key):
        if self.manifest is None or key != self.key:
            raise errors.NoSuchJob(str(key))
        given = copy.deepcopy(self.manifest)
        return ObservedJob(
            key=key,
            uid=self.uid,
            resource_version=str(self.version),
            manifest=given,
            replicas={
                kind.lower(): spec["replicas"]
                for kind, spec in given["spec"]["pytorchReplicaSpecs"].items()
            },
            phase=self.phase,
            suspended=bool((given["spec"].get("runPolicy") or {}).get("suspend")),
            created_at=9_000.0,
            finished_at=self.finished_at,
        )

    def list_pods(self, _):
        return self.pods

    def unreachable_nodes(self, nodes):
        return {name: since for name, since in self.silent_nodes.items() if name in nodes}

    def cordon_node(self, name, reason):
        self._point("cordon")
        if self.may_not:
            raise errors.InputError(self.may_not)
        self.cordoned[name] = reason

    def force_delete_pod(self, _, pod):
        self._point("abandon")
        if self.may_not:
            raise errors.InputError(self.may_not)
        self.pods = tuple(one for one in self.pods if one.uid != pod.uid)

    def delete_pod(self, _, pod):
        self._point("delete")
        self.deleted.append(pod)

    def namespace_objects(self, namespace):
        assert namespace == KEY.namespace
        return self.bounds

    def list_nodes(self):
        return self.machines

    def list_all_pods(self):
        return iter(())

    def dry_run_patch(self, key, patch):
        assert key == self.key
        self.tried.append(patch)
        return self.would_refuse

    def patch_job(self, key, patch, *, resource_version=None):
        self._point("patch")
        if self.manifest is None:
            raise errors.NoSuchJob(str(key))
        if self.operator_touches:
            self.operator_touches, self.version = False, self.version + 1
        if resource_version is not None and resource_version != str(self.version):
            raise errors.Conflict(str(key))
        before = self._replicas()
        merge(self.manifest, patch)
        self.version, self.patches = self.version + 1, self.patches + 1
        if self._replicas() != before:
            self.resizes.append((before, self._replicas()))
        self._point("patched")
        return self.get_job(key)

    def delete_job(self, _):
        self._point("delete_job")
        if self.may_not:
            raise errors.InputError(self.may_not)
        self.manifest = None

    def call_coordinator(self, key, method, path, body=None, *, pod=None):  # noqa: ARG002 - of one pod
        if not self.reachable or self.manifest is None:
            raise errors.ClusterUnavailable(f"{key}: no coordinator")
        if method == "GET":
            after = int(path.partition("after=")[2])
            return codec.dumps(self._status(after))
        self._point("post")
        if path == names.PATH_ABSENT:
            told = codec.decode(UnavailablePodsRequest, codec.encode(body))
            self.excused.append(told)
            self.awaited_ranks = tuple(
                rank for rank in self.awaited_ranks if rank not in told.ranks
            )
            return codec.dumps(Ack())
        if path == names.PATH_LOST:
            self._renewed("", body)
            return codec.dumps(Ack())
        if path == names.PATH_PODS:
            self.located.append(codec.decode(PodAddresses, codec.encode(body)).addresses)
            return codec.dumps(Ack())
        request = codec.decode(ScaleRequest, codec.encode(body))
        if request.nodes > self.most:
            raise errors.ClusterUnavailable(f"400: at most {self.most} pods")
        self.posts.append(request.nodes)
        self.expected = request.nodes
        self._point("posted")
        return codec.dumps(Ack())

    def _renewed(self, pod, body):
        told = codec.decode(ServerLostRequest, codec.encode(body))
        self.renewed.append((pod, told.uid))

    def emit(self, _, event):
        self._point("emit")
        self.events.append(event)

    # -- the world -------------------------------------------------------------------------------

    def train(self, windows=1, seconds=10.0):
        """Pods follow the spec; train for so many windows."""
        self.nodes = self._replicas()
        for _ in range(windows):
            began = self.clock.now
            self.clock.now += seconds
            step = self.law(self.nodes)
            steps = int(seconds / step)
            self.step += steps
            self.windows.append(
                Throughput(
                    began, self.clock.now, self.nodes, self.nodes, steps, 0, step, self.batch
                )
            )

    def happen(self, reason, message="", sequence=None):
        number = sequence or len(self.coordinator_events) + 1
        self.coordinator_events.append(Event(reason, message, sequence=number, at=self.clock()))

    def reasons(self):
        return [event.reason for event in self.events]

    def edit(self, patch):
        """A person's merge patch."""
        merge(self.manifest, patch)
        self.version += 1

    def _status(self, after):
        short = self.trains_with_fewer and self.nodes < self.expected
        return CoordinatorStatus(
            job=self.key.name,
            phase="training" if self.nodes == self.expected or short else "draining",
            round=1,
            nodes=self.nodes,
            expected_nodes=self.expected,
            world_size=self.nodes,
            step=self.step,
            total_steps=self.total,
            sealed_step=self.sealed or self.step or None,
            durable_step=self.durable,
            samples_per_second=self.batch / self.law(self.nodes),
            restarts=0,
            windows=tuple(self.windows[-64:]),
            goodput=Goodput(productive=self.clock() - self.story),
            events=tuple(e for e in self.coordinator_events if e.sequence > after),
            started_at=self.story,
            now=self.clock(),
            restart_seconds=1.0,
            awaited_ranks=self.awaited_ranks,
            stragglers=self.stragglers,
        )

    def _replicas(self):
        specs = self.manifest["spec"]["pytorchReplicaSpecs"]
        return sum(spec["replicas"] for spec in specs.values())

    def _point(self, _):
        self.calls += 1
        if self.calls == self.kill_at:
            raise Killed


def merge(target, patch):
    """RFC 7386."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            merge(target.setdefault(key, {}), value)
        else:
            target[key] = value
