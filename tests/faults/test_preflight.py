# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A check of real pods, one of which computes for a twentieth of its time, and later not at all."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from rover_kf.api import names
from tests.support.jobs.job_holdings import listens
from tests.support.pods.launcher_pods import Job, show
from tests.support.waiting import eventually

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

BRAKED = """
import os, pathlib, sys, time
slow, spent = pathlib.Path("slow"), [0.0]
def rest(*_):
    used = time.process_time() - spent[0]
    if used > 0.0005:
        time.sleep(min(20 * used, 0.3))
    spent[0] = time.process_time()
def brake():
    if slow.exists():
        spent[0] = time.process_time()
        sys.setprofile(rest)
os.register_at_fork(after_in_child=brake)
"""
"""A pod's sitecustomize: what its zygote forks rests twenty times as long as it has computed, after
each call. Nothing from outside does it, and no timer: on a busy machine both come too late, and a
measurement takes the best of what it has seen."""

TRAINING = """
import os, pathlib, sys, time
import torch, torch.distributed as dist
from rover_kf import Checkpointer
dist.init_process_group("gloo")
torch.manual_seed(0)
state = {"model": torch.nn.Linear(2, 2), "seen": 0}
checkpointer = Checkpointer()
step = checkpointer.restore(state)
broken, end = pathlib.Path("broken"), pathlib.Path("end")
while True:
    step += 1
    ones = torch.tensor([float(end.exists())])
    dist.all_reduce(ones)
    if ones.item():
        break
    if dist.get_rank() == 1 and broken.exists():
        broken.unlink()
        sys.stderr.write("NVRM: Xid (PCI:0000:2b:00): 79, GPU has fallen off the bus.\\n")
        os.abort()
    time.sleep(0.01)
    checkpointer.step(step, state)
checkpointer.close()
dist.destroy_process_group()
"""


def _children(pid: int) -> list[int]:
    with contextlib.suppress(FileNotFoundError):
        text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(child) for child in text.split()]
    return []


def _forked(launcher: int) -> list[int]:
    """What its zygote has forked."""
    return [pid for zygote in _children(launcher) for pid in _children(zygote)]


def _has_torch(launcher: int) -> bool:
    """A process keeps a store; with that a pod soon asks for its check."""
    return any(map(listens, _forked(launcher)))


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def stopped(launcher: int) -> Iterator[None]:
    """Whatever the launcher's zygote forks does not run."""
    over = threading.Event()

    def hold() -> None:
        while not over.is_set():
            _signal(_forked(launcher), signal.SIGSTOP)  # also what was forked just now
            over.wait(0.01)
        _signal(_forked(launcher), signal.SIGCONT)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def told(job: Job, reason: str) -> list[str]:
    with contextlib.suppress(ConnectionError):  # its coordinator is not there yet
        return [event.message for event in job.status().events if event.reason == reason]
    return []


def test_a_slow_pod_and_one_that_hangs_are_told_by_name():
    """The first check finds the slow one of three by its matmul, the next, after a failure of the
    hardware of another pod, finds that it hangs; the job trains on both times."""
    policy = {
        "preflight.mode": "exclude",
        "preflight.timeout": "8",
        names.ENV_NODE_NAME: "node-{index}",
    }
    with Job(3, min_nodes=2, policy=policy) as job:
        script = job.script(TRAINING)
        (job.folder / "slow").touch()
        job.add(1, script)
        braked = job.folder / "braked"
        braked.mkdir()
        (braked / "sitecustomize.py").write_text(BRAKED)
        launcher = job.add(2, script, first=str(braked)).launcher
        assert launcher
        # It loads torch by itself; the others find it loaded, and a check waits ten seconds for who
        # comes later. So the coordinator is there only now, when all can come.
        eventually(lambda: _has_torch(launcher.pid), within=120, what="its store")
        job.add(0, script)
        eventually(lambda: told(job, names.EVENT_PREFLIGHT), within=120, what="a check")
        (job.folder / "slow").unlink()
        check = job.status().preflight
        assert check
        show(
            "first check",
            [*told(job, names.EVENT_PREFLIGHT), *told(job, names.EVENT_NODE_CHECK_FAILED)],
        )
        assert len({pod.device for pod in check.pods}) == 1, "else no matmul is compared"
        # Pods share this machine's cores, with whatever else runs: others may have had bad luck.
        assert {one.pod: one.verdict for one in check.verdicts}["train-worker-2"] == "slow"
        slow = [
            line for line in told(job, names.EVENT_NODE_CHECK_FAILED) if "train-worker-2" in line
        ]
        assert slow[0].startswith("train-worker-2 on node-2 is slow: a")
        eventually(lambda: job.status().step > 5, within=120, what="it trains")

        (job.folder / "broken").touch()
        eventually(lambda: told(job, names.EVENT_PROCESS_FAILED), within=60, what="a failure")
        began = time.monotonic()
        with stopped(launcher.pid):
            assert job.pods[1].wait(60) == names.EXIT_RETRY
            job.pods[1].start_launcher(script)
            eventually(lambda: len(told(job, names.EVENT_PREFLIGHT)) == 2, within=120)
        show("second check", [told(job, names.EVENT_PREFLIGHT)[1], time.monotonic() - began])
        check = job.status().preflight
        assert check
        assert {one.pod: one.verdict for one in check.verdicts}["train-worker-2"] == "faulty"
        assert told(job, names.EVENT_NODE_CHECK_FAILED)[-1].startswith(
            "train-worker-2 on node-2 is faulty"
        )
        known = {one.node: one.kind for one in job.status().faulty_nodes}
        assert known["node-1"] == "gpu_hardware"
        assert known["node-2"] == "preflight"
        eventually(lambda: job.status().phase == "training", within=60, what="it trains again")
        (job.folder / "end").touch()
        assert [pod.wait() for pod in job.pods.values()] == [0, 0, 0]
