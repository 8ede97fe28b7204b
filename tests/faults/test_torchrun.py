# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""torchrun itself, whose rendezvous is our coordinator's, in pods with real sidecars."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from pods import Job, Pod, kill, show

from rover_kf.api import names
from rover_kf.sidecar.runtime import install

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

TORCHRUN = (
    *("-m", "torch.distributed.run", "--rdzv-backend=rover", "--nnodes=1:4"),
    *("--nproc-per-node=1", "--max-restarts=3"),
)


def start_agent(pod: Pod, *command: str) -> None:
    """torchrun as a container has it that keeps it: the runtime on the path, nothing installed."""
    environment = os.environ | {
        "PYTHONPATH": str(pod.job.folder / "runtime"),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        names.ENV_HOME: str(pod.home),
        names.ENV_CHECKPOINT_EVERY: "5",
    }
    with pod.log.open("ab") as log:
        pod.launcher = subprocess.Popen(
            [sys.executable, *TORCHRUN, *command],
            env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=pod.job.folder,
        )  # fmt: skip


def test_a_killed_agent_starts_a_new_round():
    """Two agents form a world at once, ranks in replica order; one is killed with its process, and
    the other trains on alone from memory, by the coordinator's word; at its end the job is done."""
    with Job(2) as job:
        install(job.folder / "runtime")
        script = job.script()
        for index in (0, 1):
            pod = job.pods[index] = Pod(job, index)
            pod.start_sidecar()
            start_agent(pod, script, "220", "0.02")
        job.stepping(0, 1)
        assert {line["rank"] for line in job.pods[1].steps()} == {1.0}
        lost = job.pods[1]
        assert lost.launcher is not None
        at = lost.steps()[-1]["at"]
        kill(lost.launcher.pid)
        kill(lost.steps()[-1]["pid"])
        lost.launcher.wait()
        show("agent_killed_seconds", round(job.stepping(0, after=at) - at, 3))
        assert job.pods[0].wait() == 0
        steps = job.pods[0].steps()
        before, after = ([s for s in steps if s["of"] == size] for size in (2, 1))
        assert before[-1]["step"] - 5 <= after[0]["step"] - 1 <= before[-1]["step"]
        assert {line["round"] for line in after} == {before[-1]["round"] + 1}
        assert after[-1]["step"] == 220
        status = job.status()
        assert (status.phase, status.durable_step, status.restarts) == ("finished", 220, 0)
        assert names.EVENT_MEMBER_LOST in job.events()
