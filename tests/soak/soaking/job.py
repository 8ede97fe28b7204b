# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The job that is soaked: the digits sample, embedded, long enough, each rank telling its steps."""

from __future__ import annotations

import contextlib
import copy
import json
import pathlib
import time
from collections.abc import Callable
from typing import Any, TypeVar

import yaml

from rover_kf.api import names
from rover_kf.api.jobs import Pod
from rover_kf.api.status import CoordinatorStatus
from rover_kf.client import RoverClient
from rover_kf.cluster.local import LocalCluster
from rover_kf.errors import ClusterUnavailable
from soaking import schedule
from soaking.trace import Round, Trace
from tests.support.waiting import eventually

SAMPLES = pathlib.Path(__file__).parents[3] / "manifests" / "samples"
SCRIPTS = pathlib.Path(__file__).parents[1] / "scripts"
SAMPLES_PER_SECOND, GLOBAL_BATCH = 160, 64
"""Each replica's input, as in the sample's manifest; the sample's own batch."""
CHECKPOINT_EVERY = 20
WITHIN_SECONDS = 120.0
"""Limit of every wait."""
LOOK_SECONDS = 0.1
MOST_BEHIND = 20
"""Steps that the coordinator may not have heard of yet; reports take a second at most."""

T = TypeVar("T")


def manifest(steps: int) -> dict[str, Any]:
    """The digits sample's job with so many steps, which nobody but this test scales."""
    text = (SAMPLES / "digits.yaml").read_text()
    job = copy.deepcopy(next(d for d in yaml.safe_load_all(text) if d["kind"] == names.PYTORCHJOB))
    job["metadata"]["annotations"] |= {
        f"{names.PREFIX}checkpoint.every": str(CHECKPOINT_EVERY),
        f"{names.PREFIX}scaling.mode": "off",
        # Some ninety failures in an hour are wanted here; the default of 10 would end the job.
        f"{names.PREFIX}failures.restarts": "100000",
    }
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    # A killed launcher's container starts again in its pod; ExitCode would replace the pod.
    worker["restartPolicy"] = "OnFailure"
    container = worker["template"]["spec"]["containers"][0]
    container["workingDir"] = str(SCRIPTS)
    script = [str(SAMPLES / "digits.py"), "--steps", str(steps)]
    rate = ["--samples-per-second", str(SAMPLES_PER_SECOND)]
    container["command"] = ["torchrun", "told.py", *script, *rate]
    return job


class Job:
    """The running job, and what is known of it.

    Args:
        rover: an embedded client.
        steps: that it trains.
    """

    def __init__(self, rover: RoverClient, steps: int) -> None:
        assert isinstance(rover.cluster, LocalCluster)
        self.rover, self.cluster, self.steps = rover, rover.cluster, steps
        self.begun = time.time()
        self.key = rover.submit(manifest(steps)).key
        self.folder = self.cluster.store.folder(self.key)
        self.trace = Trace(self.folder / "logs")

    @property
    def step(self) -> int:
        """The newest round's newest step."""
        current = self.trace.read()
        return current.step if current else 0

    def pods(self) -> tuple[Pod, ...]:
        """The job's pods in replica order."""
        return self.cluster.list_pods(self.key)

    def processes(self, index: int, container: str) -> tuple[int, ...]:
        """Processes of a replica's container, its command first."""
        return self.cluster.processes(self.key, self.pods()[index].name, container)

    def until(self, condition: Callable[[], T], what: str, *, within: float = WITHIN_SECONDS) -> T:
        """The condition's first true value.

        Raises:
            AssertionError: it took too long; with everything that is known of the job.
        """
        try:
            return eventually(condition, within=within, every=LOOK_SECONDS, what=what)
        except AssertionError as cause:
            raise AssertionError(f"{cause}\n{self.told()}") from cause

    def recovered(self, nodes: int, after_round: int) -> Round | None:
        """The newest round once all its ranks have stepped since the mark."""
        current = self.trace.read()
        if current is None or current.number <= after_round:
            return None
        return current if current.world_size == nodes and current.stepping else None

    def steady(self, nodes: int) -> bool:
        """Whether pods and coordinator agree with the trace that so many replicas train."""
        status, current = self.status(), self.trace.read()
        pods = self.pods()
        well = len(pods) == nodes and all(_well(pod) for pod in pods)
        if status is None or current is None or not well:
            return False
        said = (status.phase, status.round, status.nodes, status.expected_nodes)
        behind = current.step - status.step
        return said == ("training", current.number, nodes, nodes) and behind <= MOST_BEHIND

    def status(self) -> CoordinatorStatus | None:
        """The coordinator's word; None while it is silent."""
        with contextlib.suppress(ClusterUnavailable):
            return self.rover.status(self.key)
        return None

    def result(self) -> dict[str, float]:
        """The JSON line that rank 0 printed last."""
        lines = self.rover.logs(self.key).splitlines()
        found: dict[str, float] = json.loads(next(x for x in reversed(lines) if x[:1] == "{"))
        return found

    def told(self) -> str:
        """All that helps to find out why something was waited for in vain."""
        status = self.status()
        lines = [f"coordinator: {status and (status.phase, status.round, status.nodes)}"]
        lines += [f"newest round by the trace: {self.trace.read()}"]
        for pod in self.pods():
            lines += [str(pod)]
            for container in (names.PYTORCH_CONTAINER, names.SIDECAR_CONTAINER):
                text = self.cluster.read_log(self.key, pod.name, container, tail=60)
                kept = [line for line in text.splitlines() if not line.startswith("soak stepped")]
                lines += [f"--- {pod.name} {container}", *kept[-25:]]
        lines += [f"{e.at:.2f} {e.reason}: {e.message}" for e in self.rover.events(self.key)[-20:]]
        return "\n".join(lines)


def steps_for(minutes: float) -> int:
    """Steps that two undisturbed replicas take in so many minutes."""
    return schedule.steps_for(
        minutes, samples_per_second=SAMPLES_PER_SECOND, global_batch=GLOBAL_BATCH
    )


def _well(pod: Pod) -> bool:
    """Whether it runs, and in it everything that does not end by itself."""
    lasting = (names.PYTORCH_CONTAINER, names.SIDECAR_CONTAINER)
    running = {container.name for container in pod.containers if container.running}
    return pod.phase == "Running" and not pod.deleting and running.issuperset(lasting)
