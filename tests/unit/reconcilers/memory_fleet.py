# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Several jobs of one pod a core in a cluster of so many cores, with a scheduler that is prompt."""

from __future__ import annotations

from memory_cluster import MemoryCluster, manifest

from rover_kf.api import names
from rover_kf.api.jobs import Pod


class MemoryFleet:
    """Jobs by name, each a MemoryCluster of its own; nodes of one core each."""

    def __init__(self, clock, cores):
        self.clock = clock
        self.cores = [f"n{index}" for index in range(cores)]
        self.jobs = {}
        self.readings = 0

    def add(self, name, *, workers=1, law, **annotations):
        keyed = {f"{names.PREFIX}{key}": value for key, value in annotations.items()}
        job = MemoryCluster(self.clock, manifest(workers, annotations=keyed, name=name), law=law)
        job.uid = f"uid-{name}"
        job.reachable = False
        self.jobs[name] = job
        return job

    def end(self, name):
        self.jobs[name].phase, self.jobs[name].pods = "Succeeded", ()

    def run(self, look):
        """A window passes for every job, and each is looked at as often as a change takes."""
        self.schedule()
        began = self.clock.now
        for job in self.jobs.values():
            self.clock.now = began
            if job.reachable and job.phase == "Running":
                self._train(job, len(placed(job)))
        self.clock.now = began + 10.0
        for _ in range(3):
            for job in list(self.jobs.values()):
                look(job.key)
            self.clock.now += 0.1
            self.schedule()

    def schedule(self):
        """Pods follow what jobs ask for; those without a core get one that is free."""
        for job in self.jobs.values():
            count = job._replicas() if job.phase == "Running" else 0
            kept = [pod for pod in job.pods if pod.replica_index < count]
            have = {pod.replica_index for pod in kept}
            kept += [self._new(job, index) for index in range(count) if index not in have]
            job.pods = tuple(sorted(kept, key=lambda pod: pod.replica_index))
        for job in self.jobs.values():
            job.pods = tuple(self._placed(pod) for pod in job.pods)
            if placed(job):
                job.reachable = True
            if job.phase == "Running" and placed(job):
                job.nodes = len(placed(job))

    def sizes(self):
        """Pods with a core, by job."""
        return {name: len(placed(job)) for name, job in self.jobs.items()}

    def _train(self, job, nodes):
        asked, job._replicas = job._replicas, lambda: nodes
        try:
            job.train()
        finally:
            job._replicas = asked

    def _new(self, job, index):
        name = f"{job.key.name}-worker-{index}"
        why = "0/3 nodes are available: 3 Insufficient cpu."
        since = {"unschedulable": why, "unschedulable_since": self.clock.now}
        return Pod(name, f"{name}-{self.clock.now}", "worker", index, "Pending", **since)

    def _placed(self, pod):
        taken = {one.node for job in self.jobs.values() for one in job.pods}
        free = [core for core in self.cores if core not in taken]
        if pod.node or not free:
            return pod
        # Taken at once, so that the next pod of the same job sees it.
        found = Pod(pod.name, pod.uid, "worker", pod.replica_index, "Running", node=free[0])
        for job in self.jobs.values():
            job.pods = tuple(found if one.uid == pod.uid else one for one in job.pods)
        return found

    # -- the protocol ------------------------------------------------------------------------------

    def list_nodes(self):
        self.readings += 1
        status = {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "1", "memory": "8Gi", "pods": "10"},
        }
        return tuple({"metadata": {"name": core}, "status": status} for core in self.cores)

    def list_all_pods(self):
        for job in self.jobs.values():
            spec = job.manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
            yield from ({"spec": {**spec, "nodeName": pod.node}} for pod in job.pods)

    def namespace_objects(self, namespace):
        return next(iter(self.jobs.values())).namespace_objects(namespace)

    def __getattr__(self, name):
        """All else is asked of the job itself."""

        def ask(key, *arguments, **named):
            return getattr(self.jobs[key.name], name)(key, *arguments, **named)

        return ask


def placed(job):
    return [pod for pod in job.pods if pod.node]
