# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A pod that is told to end and has state that no other pod has: the others get it first."""

from __future__ import annotations

import signal
import threading

import pytest

from rover_kf.api import names
from tests.support.pods.launcher_pods import Job, Pod, kill, show
from tests.support.waiting import eventually

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]

SHARDED = """
import os, pathlib, sys, time
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from rover_kf import Checkpointer
dist.init_process_group("gloo")
rank, size, round_ = dist.get_rank(), dist.get_world_size(), os.environ["ROVER_ROUND"]
torch.manual_seed(0)
model = torch.nn.Linear(6, 6)
fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = {"model": model, "optimizer": optimizer}
if round_ != "1":
    print("begins late", flush=True)
    while not pathlib.Path("begin").exists():
        time.sleep(0.01)
checkpointer = Checkpointer()
step = checkpointer.restore(state)
while True:
    step += 1
    optimizer.zero_grad()
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    time.sleep(0.02)
    sys.stdout.write(f"step {step} rank {rank} of {size} pid {os.getpid()} round {round_} "
                     f"at {time.time()}\\n")
    checkpointer.step(step, state)
"""


class _Kubelet:
    """Ends a pod's sidecar once its launcher has ended."""

    def __init__(self, pod: Pod) -> None:
        self._pod, self.code = pod, -1
        self._thread = threading.Thread(target=self._end, daemon=True)
        self._thread.start()

    def _end(self) -> None:
        self.code = self._pod.wait()
        assert self._pod.sidecar is not None
        self._pod.sidecar.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """The launcher's exit code."""
        self._thread.join(120)
        return self.code


@pytest.mark.parametrize("leaver", [0, 1])
def test_what_only_a_leaving_pod_has_is_taken_first(leaver):
    """Half of a sharded state, in memory alone, in the pod with the coordinator or in the other:
    the one that stays has the step of the drain, however late it asks for it."""
    with Job(2, policy={"checkpoint.path": ""}) as job:
        job.start(job.script(SHARDED))
        job.stepping(0, 1)
        eventually(lambda: job.status().step > 0, within=120)
        pod, other = job.pods[leaver], job.pods[1 - leaver]
        assert pod.launcher is not None
        kubelet = _Kubelet(pod)
        kill(pod.launcher.pid, signal.SIGTERM)
        eventually(lambda: "begins late" in other.text(), within=120)
        assert pod.launcher.poll() is None, "it has gone with what nobody else has"
        (job.folder / "begin").touch()
        assert kubelet.wait() == names.EXIT_DRAINED
        job.stepping(1 - leaver)
        steps = other.steps()
        before, after = ([s for s in steps if s["of"] == size] for size in (2, 1))
        show("leaving", {"last": before[-1]["step"], "next": after[0]["step"]})
        assert after[0]["step"] == before[-1]["step"] + 1


def test_pods_that_all_leave_wait_for_nobody():
    """A job that is deleted: nobody is left who could want what each of them has."""
    with Job(2, policy={"checkpoint.path": ""}) as job:
        job.start(job.script(SHARDED))
        job.stepping(0, 1)
        eventually(lambda: job.status().step > 0, within=120)
        kubelets = [_Kubelet(pod) for pod in job.pods.values()]
        for pod in job.pods.values():
            assert pod.launcher is not None
            kill(pod.launcher.pid, signal.SIGTERM)
        assert [one.wait() for one in kubelets] == [names.EXIT_DRAINED] * 2
        assert "begins late" not in job.pods[0].text() + job.pods[1].text()


def test_a_pod_without_which_nobody_trains_is_not_kept():
    """Two are the fewest: the one that stays waits for another in the place of the one that goes,
    which cannot come while this one is there."""
    with Job(2, min_nodes=2, policy={"checkpoint.path": ""}) as job:
        job.start(job.script(SHARDED))
        job.stepping(0, 1)
        eventually(lambda: job.status().step > 0, within=120)
        pod = job.pods[1]
        assert pod.launcher is not None
        kubelet = _Kubelet(pod)
        kill(pod.launcher.pid, signal.SIGTERM)
        assert kubelet.wait() == names.EXIT_DRAINED
        assert "the others have not taken" not in pod.text()
