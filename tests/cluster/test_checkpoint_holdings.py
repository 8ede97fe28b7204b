# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What checkpoints take of nodes while a job runs, and that nothing of it stays after any end."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import time

import pytest
from testcluster import jobs
from testcluster.foreign import ForeignCluster
from testcluster.jobs import RunningJob
from testcluster.objects import apply
from testcluster.pod_holdings import PodHoldings, held_by_pod

from rover_kf.api import names
from tests.support.waiting import eventually

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("controller")]

STATE = 32 << 20
"""Of each rank, as scripts/weighty.py has it."""
ROUNDED = 2 << 20
"""What a slot may take besides: whole huge pages."""
CONTROL = 64 << 10


@pytest.fixture
def start(cluster, namespace, with_trainer, shared_claim):
    """Starts two ranks that save a state of their own, each with a copy of the other's."""
    if isinstance(cluster, ForeignCluster):
        pytest.skip("the nodes of --kubeconfig are not this machine: nobody can look into them")
    shared_claim(jobs.CLAIM)

    def begin() -> RunningJob:
        manifest = jobs.digits(namespace)
        manifest["metadata"]["annotations"] |= {
            "rover-kf.io/checkpoint.arena": "256Mi",
            "rover-kf.io/checkpoint.persist-seconds": "0",
            "rover-kf.io/scaling.mode": "off",
        }
        pod = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
        pod["containers"][0]["command"] = ["torchrun", "/tools/weighty.py"]
        apply(cluster, [with_trainer(manifest, scripts=jobs.SAMPLES, tools=jobs.TOOLS)])
        return RunningJob(cluster, namespace, manifest["metadata"]["name"])

    return begin


def _safe(job: RunningJob) -> dict[str, PodHoldings]:
    """What the pods hold once each rank has saved twice, with a copy in the other's memory."""

    def told() -> bool:
        pods = job.pods()
        return len(pods) == 2 and all(job.traces(pod, "safe") for pod in pods)

    eventually(told, within=120, every=0.5, what="a step that is safe")
    found = {name: held_by_pod(job.cluster, pod) for name, pod in job.pods().items()}
    for held in found.values():
        assert len(held.processes) >= 4, "sidecar, launcher, zygote, training"
        assert [path for path in held.volumes if "empty-dir" in path]
        assert held.groups
    return found


def _check_memory(held: PodHoldings) -> str:
    """Two slots and a copy of the other's: three states and not more; in words."""
    arena = sum(path.stat().st_blocks * 512 for path in _home(held).rglob("*") if path.is_file())
    assert 3 * STATE <= arena <= 3 * (STATE + ROUNDED) + CONTROL, f"{arena / STATE:.3f} states"
    (sidecar,) = {pid for pid in held.processes if _is_sidecar(pid)}
    own = _kibibytes(sidecar, "RssAnon") / 1024
    return f"{arena / STATE:.3f} states in memory, {own:.0f} MiB of the sidecar's process"


def _home(held: PodHoldings) -> pathlib.Path:
    (sidecar,) = {pid for pid in held.processes if _is_sidecar(pid)}
    return pathlib.Path(f"/proc/{sidecar}/root{names.HOME}/{names.ARENA_DIR}")


def _is_sidecar(pid: int) -> bool:
    command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    return b"rover_kf.sidecar\0" in command


def _kibibytes(pid: int, field: str) -> int:
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def _restored(job: RunningJob, pod: str) -> list[str]:
    """Where what it started from came from, but for its first start."""
    return [source for step, _, source in job.traces(pod, "restored") if step]


def _nothing_is_left(held: list[PodHoldings]) -> None:
    def left() -> list[dict[str, object]]:
        return [found for one in held if (found := one.left())]

    begun = time.monotonic()
    with contextlib.suppress(AssertionError):  # what is left says more
        eventually(lambda: not left(), within=90, every=0.5)
    assert not left()
    print(f"nothing of {len(held)} pods is left after {time.monotonic() - begun:.1f} s")


def test_a_pod_that_is_killed_and_a_normal_end_leave_nothing(start, hurry, faults):
    """All processes of a pod are killed at once; the job goes on and ends by itself. Neither the
    first pods nor those at the end have left a process, a socket, a volume or memory, though
    their objects are there still."""
    job = start()
    held = _safe(job)
    for name, one in held.items():
        print(name, _check_memory(one))
    victim = sorted(held)[1]
    for process in faults.processes(job.namespace, victim):
        with contextlib.suppress(ProcessLookupError):  # with its parent, which was before it
            os.kill(process.pid, signal.SIGKILL)
    eventually(lambda: _restored(job, victim), within=120, every=0.5, what="a restore")
    later = [held_by_pod(job.cluster, pod) for pod in job.pods().values()]
    hurry()
    assert eventually(job.verdict, within=120, every=0.5, what="the job's end") == "Succeeded"
    _nothing_is_left([*held.values(), *later])
    assert len(job.pods()) == 2


def test_a_job_deleted_while_it_saves_leaves_nothing(start):
    """The same of one that is deleted while it trains."""
    job = start()
    held = _safe(job)
    job.cluster.kubectl("-n", job.namespace, "delete", "pytorchjob", job.name, "--wait=false")
    _nothing_is_left(list(held.values()))
    # The kubelet removes a pod's object after all that the pod held.
    eventually(lambda: not job.pods(), within=60, every=0.5, what="the end of the pods' objects")
