# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A pod that holds the others up is replaced, and a job below its fewest suspended, by policy."""

from __future__ import annotations

import json

import pytest

from rover_kf.api import names
from tests.support.jobs.embedded_job import EmbeddedJob, client_in
from tests.support.jobs.job_manifests import PREFIX, make_job
from tests.support.waiting import eventually

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300), pytest.mark.alone]

SLOW_UNTIL_TOLD = """
import os, pathlib, time
import torch, torch.distributed as dist
from rover_kf import Checkpointer
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
state = {"model": model}
checkpointer = Checkpointer()
step = checkpointer.restore(state)
print("began", rank, step, checkpointer.restored_from, flush=True)
while not pathlib.Path("done").exists():
    step += 1
    slow = rank == 1 and not pathlib.Path("replaced").exists()
    time.sleep(0.04 if slow else 0.005)
    model(torch.ones(4, 8)).sum().backward()
    model.zero_grad()
    checkpointer.step(step, state)
checkpointer.close()
dist.destroy_process_group()
"""
POLICY = {
    "checkpoint.path": "checkpoints", "checkpoint.every": "20", "checkpoint.persist-seconds": "1",
    "checkpoint.arena": "64Mi", "scaling.mode": "off", "scaling.window": "1", "scaling.max": "3",
    "straggler.action": "replace", "straggler.min-seconds": "0", "straggler.replacements": "1",
}  # fmt: skip


def told(job, reason):
    return [event.message for event in job.rover.events(job.key) if event.reason == reason]


def annotate(job, **policy):
    patch = {f"{PREFIX}{key.replace('_', '.', 1)}": value for key, value in policy.items()}
    job.rover.cluster.patch_job(job.key, {"metadata": {"annotations": patch}})


def test_replaced_then_suspended_then_resumed(tmp_path):
    """The slow pod alone is another one by then, and no step is lost; below its fewest the job is
    suspended with the reason, its last step on storage, from which it goes on when resumed."""
    (tmp_path / "train.py").write_text(SLOW_UNTIL_TOLD)
    (tmp_path / "checkpoints").mkdir()
    policy = POLICY | {"checkpoint.path": str(tmp_path / "checkpoints")}
    path = tmp_path / "job.json"
    manifest = make_job(policy=policy, elastic=(1, 3))
    manifest["spec"]["nprocPerNode"] = "1"
    path.write_text(json.dumps(manifest))
    with client_in(tmp_path) as rover:
        job = EmbeddedJob(rover, rover.submit(path).key)
        before = job.between_seals()
        pods = {pod.name: pod.uid for pod in rover.cluster.list_pods(job.key)}
        eventually(lambda: told(job, names.EVENT_STRAGGLER_REPLACED), within=120, what="told")
        (tmp_path / "replaced").touch()

        def whole():
            status = job.status()
            later = status is not None and status.round > before.round
            return status if later and status.nodes == 2 else None

        eventually(whole, within=120, what="two pods train again")
        now = {pod.name: pod.uid for pod in rover.cluster.list_pods(job.key)}
        assert [name for name in pods if now[name] != pods[name]] == ["digits-worker-1"]
        (message,) = told(job, names.EVENT_STRAGGLER_REPLACED)
        print(message)

        seen = job.between_seals()
        annotate(job, scaling_min="3", **{"failures_suspend-after": "1s"})
        eventually(lambda: told(job, names.EVENT_SUSPENDED), within=60, what="suspended")
        eventually(lambda: not rover.cluster.list_pods(job.key), within=60, what="no pods")
        (message,) = told(job, names.EVENT_SUSPENDED)
        print(message)
        assert message.startswith("suspended: 2 of at least 3 pods could train for")

        (tmp_path / "done").touch()  # while nobody looks: else one rank ends and the other not
        annotate(job, scaling_min="1")
        rover.resume(job.key)
        assert rover.wait(job.key, timeout=120).phase == "Succeeded"
        began = [line.split() for line in rover.logs(job.key).splitlines() if "began" in line][-1]
        assert int(began[2]) >= seen.step
        assert began[3] == "storage"
        assert len(told(job, names.EVENT_SUSPENDED)) == 1
