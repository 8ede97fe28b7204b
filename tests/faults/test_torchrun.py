# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""torchrun itself, whose rendezvous is our coordinator's, in pods with real sidecars."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rover_kf.api import names
from rover_kf.api.status import ScaleRequest
from rover_kf.sidecar.runtime import install
from tests.support.pods.launcher_pods import TRAINING, Job, Pod, kill, show

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

STEPS = 400
SLOW = 'time.sleep(pace if os.path.exists("hurry") else 0.3)'
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


def add_agent(job: Job, index: int, script: str) -> Pod:
    pod = job.pods[index] = Pod(job, index)
    pod.start_sidecar()
    start_agent(pod, script, str(STEPS), "0.02")
    return pod


def test_a_killed_agent_starts_a_new_round():
    """A newcomer joins at a step at which the world was left: ranks in replica order, no step is
    made twice. It is killed with its process, and the other trains on alone from memory, by the
    coordinator's word; at its end the job is done."""
    with Job(1) as job:
        install(job.folder / "runtime")
        script = job.script(TRAINING.replace("time.sleep(pace)", SLOW))
        first = add_agent(job, 0, script)
        job.stepping(0)
        job.ask(names.PATH_SCALE, ScaleRequest(2))
        lost = add_agent(job, 1, script)
        job.stepping(0, 1)
        (job.folder / "hurry").touch()
        assert {line["rank"] for line in lost.steps()} == {1.0}
        alone, both = ([s["step"] for s in first.steps() if s["of"] == size] for size in (1, 2))
        assert both[0] == alone[-1] + 1, "the world was left at the drain's step"
        show("drained_at", alone[-1])
        assert lost.launcher is not None
        at = lost.steps()[-1]["at"]
        kill(lost.launcher.pid)
        kill(lost.steps()[-1]["pid"])
        lost.launcher.wait()
        show("agent_killed_seconds", round(job.stepping(0, after=at) - at, 3))
        assert job.pods[0].wait() == 0
        steps = job.pods[0].steps()
        before = [s for s in steps if s["of"] == 2]
        after = [s for s in steps if s["round"] > before[-1]["round"]]
        assert before[-1]["step"] - 5 <= after[0]["step"] - 1 <= before[-1]["step"]
        assert {line["round"] for line in after} == {before[-1]["round"] + 1}
        assert after[-1]["step"] == STEPS
        status = job.status()
        assert (status.phase, status.durable_step, status.restarts) == ("finished", STEPS, 0)
        assert names.EVENT_MEMBER_LOST in job.events()
