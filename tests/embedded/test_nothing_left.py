# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a job with checkpoints holds of the machine while it runs, and that none of it stays after
its end: the normal one, one by errors of its script, by a limit, its deletion, one after a pod was
killed, and those of the process that runs it: Ctrl-C and SIGKILL."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import JobKey
from rover_kf.checkpoint.format import manifest as manifests
from rover_kf.checkpoint.storage.directory import DirectoryStorage
from rover_kf.cli import exit_codes
from rover_kf.client import RoverClient
from tests.support.jobs.embedded_job import EmbeddedJob, client_in
from tests.support.jobs.job_holdings import KEPT, Holdings, held_by_job
from tests.support.jobs.job_manifests import make_job, trainer_of
from tests.support.waiting import eventually

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]

SOON = 60.0
"""Seconds from a verdict until nothing may be left: a pod's grace of 30, of which a world that is
ended while it trains drains for 12 at most, after which its processes are killed; and as many for a
busy machine to do so. It is mostly two."""
COMMAND = (sys.executable, "-m", "rover_kf.cli", "--on", "embedded", "--state")

SCRIPT = """
import pathlib, sys, time
import torch
import torch.distributed as dist
import rover_kf
dist.init_process_group("gloo")
print("begins", flush=True)
place = pathlib.Path(sys.argv[1])
saver, state = rover_kf.Checkpointer(), {"w": torch.zeros(1 << 20)}
for step in range(saver.restore(state) + 1, 100_000):
    state["w"] += 1
    saver.step(step, state, total_steps=100_000)
    end = torch.tensor(int((place / "finish").exists()))
    dist.all_reduce(end)  # all ranks end at the same step, or its checkpoint is never whole
    if end and step % 10 == 0:
        break
    if (place / "wrong").exists():
        raise ValueError("the data has a row that is wrong")
    if (place / "gone").exists():
        raise OSError("the data is gone")
    time.sleep(0.01)
saver.wait(step, "durable")
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> pathlib.Path:
    """The folder for temporary files of the job alone."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def _job(folder: pathlib.Path, policy: str = "") -> dict:
    (folder / "train.py").write_text(SCRIPT)
    (folder / "stored").mkdir()
    wanted = {
        "checkpoint.path": str(folder / "stored"),
        "checkpoint.arena": "64Mi",
        "checkpoint.every": "5",
        "checkpoint.persist-seconds": "0",
        "failures.restarts": "2",
    }
    job = make_job(workers=2, policy=wanted)
    job["spec"]["nprocPerNode"] = "1"
    if policy:
        job["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] = policy
    trainer_of(job)["command"] = ["torchrun", str(folder / "train.py"), str(folder)]
    return job


def _running(job: EmbeddedJob, folder: pathlib.Path) -> Holdings:
    """What it holds once it trains: it is checked that what is looked for is found."""
    job.between_seals()
    eventually(lambda: _durable(job), within=60, what="a checkpoint on storage")
    held = held_by_job(folder / "state")
    assert len(held.volumes) == 2
    assert {path.name for path in held.files} >= {"slot-0", "slot-1"}
    assert len(held.processes) >= 10, "supervisors, sidecars, launchers, zygotes, training"
    assert len(held.listening) >= 4, "a Unix socket and a port of each sidecar"
    return held


def _durable(job: EmbeddedJob) -> bool:
    status = job.status()
    return status is not None and bool(status.durable_step)


def _finish(rover: RoverClient, job: EmbeddedJob, folder: pathlib.Path) -> None:
    (folder / "finish").touch()
    assert rover.wait(job.key, timeout=200).phase == "Succeeded", rover.logs(job.key)


def _kill(rover: RoverClient, job: EmbeddedJob, folder: pathlib.Path) -> None:
    """All processes of a pod, its sidecar's among them, and then those that came after them."""
    before = job.between_seals()
    for container in (names.SIDECAR_CONTAINER, names.PYTORCH_CONTAINER):
        for pid in rover.cluster.processes(job.key, "digits-worker-1", container):
            with contextlib.suppress(ProcessLookupError):  # with its parent, which was the first
                os.kill(pid, signal.SIGKILL)
    job.goes_on(before)
    _finish(rover, job, folder)


def _fail(how: str, verdict: str) -> Callable[[RoverClient, EmbeddedJob, pathlib.Path], None]:
    def fail(rover: RoverClient, job: EmbeddedJob, folder: pathlib.Path) -> None:
        (folder / how).touch()
        with pytest.raises(errors.JobFailed, match=verdict):
            rover.wait(job.key, timeout=200)

    return fail


def _outlast(rover: RoverClient, job: EmbeddedJob, _: pathlib.Path) -> None:
    rover.cluster.patch_job(job.key, {"spec": {"runPolicy": {"activeDeadlineSeconds": 1}}})
    with pytest.raises(errors.JobFailed, match="active longer than specified deadline"):
        rover.wait(job.key, timeout=60)


ENDS = {
    "normal end": ("", _finish),
    "killed pod": ("", _kill),
    "error of the script": ("", _fail("wrong", "the data has a row that is wrong")),
    "budget": ("", _fail("gone", "the budget of 2 restarts is spent")),
    "budget, ExitCode": ("ExitCode", _fail("gone", "the budget of 2 restarts is spent")),
    "time limit": ("", _outlast),
}


@pytest.mark.parametrize("end", ENDS)
def test_nothing_is_left(tmp_path, temporary, end):
    """The process that ran the job goes on, as a notebook does; what tells of the job stays."""
    policy, bring_about = ENDS[end]
    with client_in(tmp_path) as rover:
        job = EmbeddedJob(rover, rover.submit(_job(tmp_path, policy)).key)
        held = _running(job, tmp_path)
        bring_about(rover, job, tmp_path)
        seconds = _empty(held)
        assert not _left_in(temporary)
        # A limit ends the pods of a job that has ended, and they are told of as their processes go.
        eventually(lambda: _phases(rover, job) <= {"Succeeded", "Failed"}, what="all pods' ends")
        (folder,) = (tmp_path / "state" / "jobs").glob("*/*/*")
        assert {path.name for path in folder.iterdir()} <= KEPT | {"work"}
        assert rover.get(job.key).finished
        assert rover.events(job.key)
        assert "begins" in rover.logs(job.key)
    _print(end, held, _stored(tmp_path), seconds)


def test_nothing_is_left_of_a_deleted_job(tmp_path, temporary):
    """Its folder goes, too."""
    with client_in(tmp_path) as rover:
        job = EmbeddedJob(rover, rover.submit(_job(tmp_path)).key)
        held = _running(job, tmp_path)
        rover.delete(job.key)
        eventually(lambda: not rover.list(), within=100, what="the job is gone")
        seconds = _empty(held)
        assert not _left_in(temporary)
        jobs = tmp_path / "state" / "jobs"
        eventually(lambda: not [*jobs.glob("*/*/*")], what="the folder is gone, file by file")
    _print("deletion", held, _stored(tmp_path), seconds)


def test_nothing_is_left_after_ctrl_c(tmp_path, temporary):
    """The command drains its job, says so and ends with the code of an interrupt."""
    with client_in(tmp_path) as rover, _command(tmp_path) as process:
        job = _seen(rover)
        held = _running(job, tmp_path)
        process.send_signal(signal.SIGINT)
        assert process.wait(100) == exit_codes.INTERRUPTED
        # The command has ended by itself: there is nothing more to wait for.
        assert not held.left()
    assert not _left_in(temporary)
    assert not [*(tmp_path / "state" / "jobs").glob("*/*/*")]
    _print("Ctrl-C", held, _stored(tmp_path), 0.0)


def test_nothing_is_left_after_kill_9(tmp_path, temporary):
    """Nobody has to come and sweep; whoever comes is told how the job ended."""
    with client_in(tmp_path) as rover, _command(tmp_path) as process:
        job = _seen(rover)
        held = _running(job, tmp_path)
        process.kill()
        process.wait()
        seconds = _empty(held)
    assert not _left_in(temporary)
    with client_in(tmp_path) as later:
        with pytest.raises(errors.JobFailed, match="the process that ran it ended"):
            later.wait(job.key, timeout=10)
        (folder,) = (tmp_path / "state" / "jobs").glob("*/*/*")
        assert {path.name for path in folder.iterdir()} <= KEPT
    _print("kill -9", held, _stored(tmp_path), seconds)


@contextlib.contextmanager
def _command(folder: pathlib.Path) -> Iterator[subprocess.Popen[bytes]]:
    """``rover-kf run`` as a user starts it."""
    (folder / "job.json").write_text(json.dumps(_job(folder)))
    variables = {name: value for name, value in os.environ.items() if "ROVER_KF" not in name}
    command = [*COMMAND, str(folder / "state"), "run", str(folder / "job.json")]
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env=variables)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _seen(rover: RoverClient) -> EmbeddedJob:
    """The job of a command, as another process sees it."""
    key = JobKey("team", "digits", names.PYTORCHJOB)
    eventually(lambda: key in {job.key for job in rover.list()}, within=60, what="the job is there")
    return EmbeddedJob(rover, key)


def _phases(rover: RoverClient, job: EmbeddedJob) -> set[str]:
    return {pod.phase for pod in rover.cluster.list_pods(job.key)}


def _empty(held: Holdings) -> float:
    """Seconds from now until nothing is left."""
    began = time.monotonic()
    try:
        eventually(lambda: not held.left(), within=SOON)
    except AssertionError as late:
        raise AssertionError(f"{held.left()} is left after {SOON:g} s") from late
    return time.monotonic() - began


def _left_in(temporary: pathlib.Path) -> list[pathlib.Path]:
    """But for the folder that torch has for what it compiles: one a user, for all programs."""
    return [path for path in temporary.iterdir() if not path.name.startswith("torchinductor_")]


def _stored(folder: pathlib.Path) -> int:
    """Whole checkpoints on storage; there is nothing else but one that was not completed, and what
    the next commit removes: a pod that was killed had written its share of a step, and so did the
    one in its place."""
    (place,) = (folder / "stored").iterdir()
    storage = DirectoryStorage(place)
    whole = storage.complete_folders()
    assert whole
    storage.collect(len(whole), current=max(found.state.round for found in whole))
    for found in whole:
        files = {file.name for file in storage.verify(found).files}
        there = {path.name for path in pathlib.Path(found.location).iterdir()}
        assert there == {manifests.NAME, *files}
    return len(whole)


def _print(end: str, held: Holdings, stored: int, seconds: float) -> None:
    print(
        f"{end}: {len(held.processes)} processes, {len(held.volumes)} volumes in memory with "
        f"{len(held.files)} files, {len(held.sockets)} sockets, 0 left after {seconds:.1f} s; "
        f"{stored} whole checkpoints on storage"
    )
