# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint folder that hangs, as that of a dead file server or disk, beside a real sidecar."""

from __future__ import annotations

import pathlib
import signal
import time

import pytest

from rover_kf import errors
from rover_kf.checkpoint.storage.rank_content import SlotContent
from rover_kf.checkpoint.storage.rate_limit import RateLimiter
from rover_kf.sidecar.persist.storage_proxy import StorageProxy
from tests.support.faults.hanging_folder import disk, must_be_root, silent
from tests.support.pods.sidecar_pods import SidecarPod, job_folder
from tests.support.pods.storage_pod import StoragePod
from tests.support.states import identities
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def _root():
    must_be_root()


@pytest.mark.usefixtures("_root")
def test_who_reads_does_not_end_the_silence_of_who_writes(tmp_path):
    """A disk that lets no write return can be listed: the metric goes on until a write returns."""
    slot = tmp_path / "slot"
    slot.write_bytes(bytes(1 << 20))
    content = SlotContent(slot, 1 << 20, ((0, 1 << 20),))
    with disk(tmp_path / "disk") as volume:
        storage = StorageProxy(volume.folder / "pvc", RateLimiter(0), timeouts=(20.0, 1.0))
        try:
            storage.write_slot(storage.folder(identities.state(1)), 0, content)
            volume.freeze()
            with pytest.raises(errors.StorageError, match="hangs: no answer for 1 s"):
                storage.write_slot(storage.folder(identities.state(2)), 0, content)
            assert {folder.step for folder in storage.folders()} >= {1}
            assert storage.silent_seconds > 1
            volume.thaw()
            storage.write_slot(storage.folder(identities.state(3)), 0, content)
            assert storage.silent_seconds == 0
        finally:
            volume.thaw()
            storage.close()


@pytest.mark.usefixtures("_root")
def test_a_disk_that_lets_no_write_return(tmp_path):
    """Whoever writes cannot even be killed. Saves, slots and recovery go on from memory, the Event
    and the metric say how long it has hung, and it is written when the disk is back. A sidecar that
    is told to end does so while it hangs, and a new one goes on."""
    with job_folder() as (folder, place), disk(tmp_path / "disk") as volume:
        pod = StoragePod(folder, place, volume.folder / "pvc")
        try:
            pod.trainer.restore(1)
            pod.save(1)
            pod.durable(1)
            volume.freeze()
            pod.save(2)
            message = eventually(pod.hangs, within=120, what="the Event says that it hangs")
            assert f"{volume.folder}/pvc/train hangs: no answer for " in message
            assert "checkpoints in memory go on" in message
            assert pod.silent_seconds() > 15
            for step in range(3, 8):
                pod.save(step)
            begun = time.monotonic()
            assert (pod.trainer.restore(2).step, pod.trainer.round) == (7, 2)
            recovered = time.monotonic() - begun
            volume.thaw()
            pod.durable(7)
            assert pod.silent_seconds() == 0
            volume.freeze()
            pod.save(8)
            eventually(lambda: _writers_held(pod.sidecar), within=60, what="a writer hangs")
            begun = time.monotonic()
            pod.sidecar.signal(signal.SIGTERM)
            assert pod.sidecar.process.wait(60) == 0
            ended = time.monotonic() - begun
            volume.thaw()
            pod.sidecar.start().ready()
            pod.durable(8)
        finally:
            pod.sidecar.kill()
    print(f"recovered in {recovered:.1f} s, ended in {ended:.1f} s while it hung")
    assert recovered < 5  # what is as new in memory is taken without a question
    assert ended < 30


@pytest.mark.usefixtures("_root")
def test_a_server_that_is_gone(tmp_path):
    """Nobody can even look at the folder: a restart in place resumes from memory all the same, and
    a coordinator that starts meanwhile serves. When the server is back, all is written."""
    storage = tmp_path / "pvc"
    storage.mkdir()
    with job_folder() as (folder, place):
        pod = StoragePod(folder, place, storage)
        try:
            pod.trainer.restore(1)
            pod.save(1)
            pod.durable(1)
            with silent(storage):
                pod.save(2)
                begun = time.monotonic()
                assert pod.trainer.restore(2).step == 2
                recovered = time.monotonic() - begun
                eventually(pod.hangs, within=120, what="the Event says that it hangs")
                pod.save(3)
                pod.sidecar.kill()
                pod.sidecar.start().ready()
                eventually(pod.hangs, within=120, what="the new coordinator says so, too")
                pod.save(4)
            pod.durable(4)
        finally:
            pod.sidecar.kill()
    print(f"recovered in {recovered:.1f} s while nobody could look at the folder")
    assert recovered < 5


def _writers_held(sidecar: SidecarPod) -> bool:
    """A process of the sidecar's is in the kernel and cannot be interrupted."""
    try:
        tasks = pathlib.Path(f"/proc/{sidecar.process.pid}/task").glob("*/children")
        children = [int(pid) for task in tasks for pid in task.read_text().split()]
        return any(_waits(pid) for pid in children)
    except (FileNotFoundError, ProcessLookupError):  # a thread or a writer has ended meanwhile
        return False


def _waits(pid: int) -> bool:
    threads = pathlib.Path(f"/proc/{pid}/task")
    states = (
        (thread / "stat").read_text().rpartition(")")[2].split()[0] for thread in threads.iterdir()
    )
    return "D" in states
