# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a job with checkpoints holds of the machine while it runs, and that none of it stays after
its end: the normal one, one after a pod was killed, and its deletion."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import signal

import pytest
from embedded_job import EmbeddedJob, client_in
from job_manifests import make_job, trainer_of
from tests_support import eventually

from rover_kf.api import names
from rover_kf.checkpoint import manifest as manifests
from rover_kf.checkpoint.directory_storage import DirectoryStorage
from rover_kf.client import RoverClient

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]

MEMORY = pathlib.Path("/dev/shm")
"""Where memory-backed volumes are."""
LISTENING = "0A"
"""A TCP socket's state, as /proc/net/tcp has it."""

SCRIPT = """
import pathlib, sys, time
import torch
import rover_kf
place = pathlib.Path(sys.argv[1])
saver, state = rover_kf.Checkpointer(), {"w": torch.zeros(1 << 20)}
for step in range(saver.restore(state) + 1, 100_000):
    state["w"] += 1
    saver.step(step, state, total_steps=100_000)
    if (place / "finish").exists() and step % 10 == 0:
        break
    time.sleep(0.01)
saver.wait(step, "durable")
"""


@dataclasses.dataclass(frozen=True)
class Held:
    """What a running job has of the machine."""

    processes: frozenset[int]
    memory: frozenset[pathlib.Path]
    """Folders of its volumes in memory."""
    slots: frozenset[pathlib.Path]
    """Files in them that processes map."""
    sockets: frozenset[int]
    """Inodes of all that its processes have."""
    listening: frozenset[int]
    """Those that wait for connections."""

    def left(self) -> dict[str, object]:
        """What of it is there still."""
        there = {int(path.name) for path in pathlib.Path("/proc").iterdir() if path.name.isdigit()}
        found = {
            "processes": [pid for pid in self.processes & there if not _is_zombie(pid)],
            "memory": [path for path in self.memory if path.exists()],
            "sockets": self.sockets & (_tcp() | _unix(self.memory)),
        }
        return {what: value for what, value in found.items() if value}


def _is_zombie(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _tcp(state: str = "") -> set[int]:
    """Inodes of TCP sockets, of one state or of any."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == (state or words[3]):
                found.add(int(words[9]))
    return found


def _unix(folders: frozenset[pathlib.Path]) -> set[int]:
    """Inodes of Unix sockets that have a name below these folders."""
    found = set()
    for line in pathlib.Path("/proc/net/unix").read_text().splitlines()[1:]:
        words = line.split()
        if any(word.startswith(str(folder)) for word in words[7:] for folder in folders):
            found.add(int(words[6]))
    return found


def _held(rover: RoverClient, job: EmbeddedJob) -> Held:
    containers = (names.PYTORCH_CONTAINER, names.SIDECAR_CONTAINER)
    pods = rover.cluster.list_pods(job.key)
    processes = {
        pid
        for pod in pods
        for container in containers
        for pid in rover.cluster.processes(job.key, pod.name, container)
    }
    memory = frozenset(path for pod in pods for path in MEMORY.glob(f"rkf-{pod.uid[:8]}-*"))
    sockets: set[int] = set()
    slots: set[pathlib.Path] = set()
    for pid in processes:
        sockets |= _sockets_of(pid)
        slots |= {path for path in _mapped(pid) if memory & {*path.parents}}
    found = sockets & (_tcp() | _unix(memory))
    listening = frozenset(sockets & (_tcp(LISTENING) | _unix(memory)))
    return Held(frozenset(processes), memory, frozenset(slots), frozenset(found), listening)


def _sockets_of(pid: int) -> set[int]:
    found = set()
    try:
        for descriptor in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                found.add(int(target[8:-1]))
    except FileNotFoundError:  # it has closed it, or ended
        pass
    return found


def _mapped(pid: int) -> set[pathlib.Path]:
    try:
        lines = pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    return {pathlib.Path(line.split(maxsplit=5)[5]) for line in lines if str(MEMORY) in line}


def _finish(rover: RoverClient, job: EmbeddedJob, place: pathlib.Path) -> None:
    (place / "finish").touch()
    assert rover.wait(job.key, timeout=200).phase == "Succeeded", rover.logs(job.key)


def _delete(rover: RoverClient, job: EmbeddedJob, _: pathlib.Path) -> None:
    rover.delete(job.key)
    eventually(lambda: not rover.list(), within=100, what="the job is gone")


def _kill(rover: RoverClient, job: EmbeddedJob, place: pathlib.Path) -> None:
    """All processes of a pod, its sidecar's among them, and then those that came after them."""
    before = job.between_seals()
    for container in (names.SIDECAR_CONTAINER, names.PYTORCH_CONTAINER):
        for pid in rover.cluster.processes(job.key, "digits-worker-1", container):
            os.kill(pid, signal.SIGKILL)
    job.goes_on(before)
    _finish(rover, job, place)


ENDS = {"normal end": _finish, "deletion": _delete, "killed pod": _kill}


@pytest.mark.parametrize("end", ENDS)
def test_nothing_is_left(tmp_path, end):
    """No process, no page in memory, no socket; on storage whole checkpoints and nothing else."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    (tmp_path / "stored").mkdir()
    policy = {
        "checkpoint.path": str(tmp_path / "stored"),
        "checkpoint.arena": "64Mi",
        "checkpoint.every": "5",
        "checkpoint.persist-seconds": "0",
        "failures.restarts": "2",
    }
    job_manifest = make_job(workers=2, policy=policy)
    job_manifest["spec"]["nprocPerNode"] = "1"
    trainer_of(job_manifest)["command"] = ["torchrun", str(script), str(tmp_path)]
    before = {path.name for path in MEMORY.iterdir()}
    with client_in(tmp_path) as rover:
        job = EmbeddedJob(rover, rover.submit(job_manifest).key)
        job.between_seals()
        held = _held(rover, job)
        assert len(held.memory) == 2
        assert {path.name for path in held.slots} == {"slot-0", "slot-1"}
        assert len(held.listening) >= 4, "a Unix socket and a port of each sidecar"
        ENDS[end](rover, job, tmp_path)
        eventually(lambda: not held.left(), within=60, what=f"nothing left, not {held.left()}")
        known = {path.name for path in MEMORY.iterdir()} - before
        assert not [name for name in known if name.startswith("rkf-")]
    (folder,) = (tmp_path / "stored").iterdir()
    storage = DirectoryStorage(folder)
    whole = storage.whole()
    assert whole
    expected = {manifests.NAME, manifests.file_name(0), manifests.file_name(1)}
    for found in whole:
        assert {path.name for path in pathlib.Path(found.location).iterdir()} <= expected
        storage.verify(found)
    print(
        f"{end}: {len(held.processes)} processes, {len(held.memory)} volumes in memory, "
        f"{len(held.sockets)} sockets, 0 left; {len(whole)} whole checkpoints on storage"
    )
