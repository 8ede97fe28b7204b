# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""An embedded job under test: looked at, one of its training processes killed, its result read."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
from typing import Any

from rover_kf.api import names
from rover_kf.api.jobs import JobKey
from rover_kf.api.status import CoordinatorStatus
from rover_kf.client import RoverClient, settings
from rover_kf.cluster.protocol import Cluster
from rover_kf.errors import ClusterUnavailable
from tests.support.waiting import eventually


def client_in(folder: pathlib.Path, cluster: Cluster | None = None) -> RoverClient:
    """A client that keeps its state and its history in a folder, whatever the environment says.

    Args:
        folder: of the test.
        cluster: where jobs run; None: embedded, with its state in ``folder/state``.
    """
    return RoverClient(cluster, config=settings.read({}, state=folder / "state"))


@dataclasses.dataclass(frozen=True, slots=True)
class EmbeddedJob:
    """A submitted job."""

    rover: RoverClient
    key: JobKey

    def status(self) -> CoordinatorStatus | None:
        """The coordinator's word; None while it is silent."""
        assert not self.rover.get(self.key).finished, self.rover.logs(self.key)
        try:
            return self.rover.status(self.key)
        except ClusterUnavailable:
            return None

    def between_seals(self) -> CoordinatorStatus:
        """Wait until it trains beyond a sealed step; the status then."""

        def trains() -> CoordinatorStatus | None:
            status = self.status()
            ahead = status is not None and status.phase == "training" and status.sealed_step
            return status if ahead and status.step > status.sealed_step else None

        return eventually(trains, within=180, what="a step after a seal")

    def goes_on(self, before: CoordinatorStatus) -> CoordinatorStatus:
        """Wait until another round trains beyond what was seen before; the status then."""

        def again() -> CoordinatorStatus | None:
            status = self.status()
            later = status is not None and status.round > before.round
            return status if later and status.step > before.step else None

        return eventually(again, within=120, what="another round trains")

    def training_process(self, pod: str) -> int:
        """The process of a pod that maps a slot of the arena."""
        pids = self.rover.cluster.processes(self.key, pod, names.PYTORCH_CONTAINER)
        return next(pid for pid in pids if "/arena/" in _maps(pid))

    def kill(self, pod: str) -> str:
        """SIGKILL a pod's training process; the files that it had mapped."""
        pid = self.training_process(pod)
        mapped = _maps(pid)
        os.kill(pid, signal.SIGKILL)
        return mapped

    def result(self) -> dict[str, Any]:
        """The JSON line that rank 0 printed last."""
        lines = reversed(self.rover.logs(self.key).splitlines())
        return json.loads(next(line for line in lines if line.startswith("{")))


def _maps(pid: int) -> str:
    """What a process has mapped; nothing of one that has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return pathlib.Path(f"/proc/{pid}/maps").read_text()
    return ""
