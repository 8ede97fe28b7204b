# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The job and all that may be broken around it."""

from __future__ import annotations

import dataclasses
import pathlib

from testcluster.cluster import Cluster
from testcluster.faults import NodeFaults, ProcessFaults
from testcluster.jobs import RunningJob
from testcluster.pod_processes import PodProcess

from chaos import journal
from chaos.journal import Line

FIRST, SECOND = "worker-0", "worker-1"
SIDECAR, TRAINER = "rover-sidecar", "pytorch"


@dataclasses.dataclass(frozen=True, slots=True)
class Scene:
    """One job of two workers."""

    cluster: Cluster
    job: RunningJob
    processes: ProcessFaults
    nodes: NodeFaults
    storage: pathlib.Path
    """The folder behind the job's claim."""
    checkpoints: pathlib.Path
    """The small disk in it that checkpoints go to."""
    controller: str
    """The controller's namespace."""
    outside: str
    """A namespace without a pod-security profile."""
    toolbox: str
    """An image with a shell."""

    def lines(self) -> list[Line]:
        """What the training processes have written down."""
        return journal.read(self.storage / "journal")

    def pod(self, role: str) -> str:
        """Name of the job's pod in that role."""
        return f"{self.job.name}-{role}"

    def node_of(self, role: str) -> str:
        """Where that pod runs."""
        node: str = self.job.pods()[self.pod(role)]["spec"]["nodeName"]
        return node

    def trainer(self, role: str) -> PodProcess:
        """The training process of a pod: the container's newest."""
        found = self.processes.processes(self.job.namespace, self.pod(role), container=TRAINER)
        return found[-1]

    def first_of(self, role: str, container: str) -> PodProcess:
        """The first process of a container, which ends it."""
        found = self.processes.processes(self.job.namespace, self.pod(role), container=container)
        return found[0]
