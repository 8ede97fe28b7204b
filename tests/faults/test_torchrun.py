# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""torchrun itself, whose rendezvous is our coordinator's, in pods with real sidecars."""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys

import pytest
from torch.distributed import DistStoreError
from torch.distributed.elastic.utils.store import barrier

from rover_kf.api import names
from rover_kf.api.status import ScaleRequest
from rover_kf.launcher.torch_rendezvous import RoverRendezvous
from rover_kf.sidecar.runtime import install
from tests.support.pods.launcher_pods import TRAINING, Job, Pod, kill, show

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

STEPS = 400
SLOW = 'time.sleep(pace if os.path.exists("hurry") else 0.3)'
TORCHRUN = (
    *("-m", "torch.distributed.run", "--rdzv-backend=rover", "--nnodes=1:4"),
    "--max-restarts=3",
)

ALONE = """
import os
import torch
from rover_kf import Checkpointer
checkpointer, state = Checkpointer(), {"w": torch.zeros(2)}
checkpointer.restore(state)
print("trains as rank", os.environ["RANK"], flush=True)
if os.environ["RANK"] == "0":
    checkpointer.save(1, state)
checkpointer.close()
"""


@pytest.fixture
def environment(monkeypatch):
    """A handler tells its processes by it."""
    for name in (names.ENV_ROUND, names.ENV_LAUNCHER, names.ENV_RESTING):
        monkeypatch.setenv(name, "")


def start_agent(pod: Pod, *command: str, processes: int = 1) -> None:
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
            [sys.executable, *TORCHRUN, f"--nproc-per-node={processes}", *command],
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


@pytest.mark.usefixtures("environment")
def test_a_step_that_never_comes_to_storage_fails_the_job():
    """Rank 0 saves alone: torchrun printed a line after ten minutes and ended with 0, so the job
    had succeeded without its last step. Now it ends as rover-run does, and so does one that joins
    later."""
    with Job(1) as job:
        install(job.folder / "runtime")
        pod = job.pods[0] = Pod(job, 0)
        pod.start_sidecar()
        start_agent(pod, job.script(ALONE), processes=2)
        assert pod.wait() == names.EXIT_USER_ERROR
        assert "rover-kf: the newest checkpoint is not durable: step 1 does not" in pod.text()
        assert "ranks [1] have not saved it" in pod.text()
        with pytest.raises(SystemExit) as late:
            RoverRendezvous(pod.home, "run", 2).next_rendezvous()
        assert late.value.code == names.EXIT_USER_ERROR


@pytest.mark.usefixtures("environment")
def test_a_peer_that_fails_after_this_pods_success_does_not_train_on_without_it():
    """What torchrun's agents ask for, in their order. The one whose processes have succeeded waited
    for five minutes, and then ended with 0. It hears at once that the round has ended, and has
    another container tried, which trains in the next round. Who comes after the job's end ends with
    0 as well."""
    with Job(2, min_nodes=2) as job, concurrent.futures.ThreadPoolExecutor() as threads:
        for index in range(2):
            pod = job.pods[index] = Pod(job, index)
            pod.start_sidecar()
        first, second = (RoverRendezvous(pod.home, "run", 1) for pod in job.pods.values())
        begun = [threads.submit(each.next_rendezvous) for each in (first, second)]
        store = begun[0].result(120).store
        assert begun[1].result(120).rank == 1
        waits = threads.submit(barrier, store, 2, "terminal state", 300)
        again = threads.submit(second.next_rendezvous)  # its processes have failed
        with pytest.raises(DistStoreError, match="the round has ended"):
            waits.result(120)
        with pytest.raises(SystemExit) as ended:
            first.shutdown()
        assert ended.value.code == names.EXIT_RETRY
        successor = RoverRendezvous(job.pods[0].home, "run", 1)
        found = [successor.next_rendezvous(), again.result(120)]
        assert [(info.rank, info.world_size) for info in found] == [(0, 2), (1, 2)]
        ends = [threads.submit(each.shutdown) for each in (second, successor)]
        assert [end.result(120) for end in ends] == [True, True]
        assert job.status().phase == "finished"
        with pytest.raises(SystemExit) as late:
            RoverRendezvous(job.pods[0].home, "run", 1).next_rendezvous()
        assert late.value.code == 0
