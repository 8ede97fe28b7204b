# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A volume that is full for a moment: what could not be written leaves no room taken.

That goes for the state folder of embedded jobs as for checkpoints.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
from collections.abc import Iterator

import pytest
from local_jobs import job, replica

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import Event
from rover_kf.checkpoint.format import snapshot
from rover_kf.checkpoint.storage.directory import DirectoryStorage
from rover_kf.cluster.local import LocalCluster
from tests.support.pods import checkpoint_pod
from tests.support.pods.bare_trainer import Trainer
from tests.support.waiting import eventually

VOLUME, STATE, OTHERS = 20 << 20, 8 << 20, 5 << 20
"""With one checkpoint and what others have there, another one does not fit; without theirs it does,
and half of one besides does not."""


def _state(step: int) -> bytes:
    layout = snapshot.plan([snapshot.Entry("content", "U8", (STATE,), 1)], {})
    return snapshot.header(layout, {}) + bytes([step]) * STATE


@contextlib.contextmanager
def _volume(folder: pathlib.Path) -> Iterator[None]:
    if os.geteuid() != 0:
        reason = "not root: a volume that is soon full cannot be mounted"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={VOLUME}", "none", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_volume_that_has_room_again_is_used(tmp_path):
    """Somebody's file fills it, a persist is refused, the file goes: the next step is durable."""
    volume = tmp_path / "volume"
    with (
        _volume(volume),
        checkpoint_pod.pods(tmp_path, 1, storage=volume, checkpoint_keep=1) as (pod,),
    ):
        trainer = Trainer(pod)
        trainer.save(1, _state(1))
        assert trainer.wait(1, "durable").done
        (volume / "of others").write_bytes(bytes(OTHERS))
        trainer.save(2, _state(2))
        eventually(lambda: _refusals(pod), what="step 2 is refused")
        assert not list((volume / "demo").rglob("*.part"))
        (volume / "of others").unlink()
        trainer.save(3, _state(3))
        assert trainer.wait(3, "durable").done
        stored = DirectoryStorage(volume / "demo")
        alone = lambda: [folder.step for folder in stored.folders()] == [3]  # noqa: E731 - a condition
        eventually(alone, what="the other steps' folders are gone")
        assert stored.verify(stored.folders()[0]).state.step == 3


def _refusals(pod: checkpoint_pod.Pod) -> list[str]:
    told = pod.told(names.EVENT_CHECKPOINT_WARNING)
    return [message for message in told if "No space left" in message]


def _fill(folder: pathlib.Path) -> None:
    """Take all room, and all names for new files, of a volume."""
    with contextlib.suppress(OSError), (folder / "of others").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_an_embedded_job_outlives_a_full_state_folder(tmp_path, caplog):
    """Its program ends while nothing of the job can be written: that is told, and written later."""
    state, gate = tmp_path / "state", tmp_path / "gate"
    with _volume(state), LocalCluster(state) as cluster:
        waits = f"until [ -e {gate} ]; do sleep 0.05; done"
        key = cluster.create_job(job("full", None, replica(waits))).key
        eventually(lambda: cluster.get_job(key).phase == "Running", what="it runs")
        _fill(state)
        gate.touch()
        eventually(lambda: "No space left on device" in caplog.text, what="it is told")
        assert cluster.get_job(key).phase == "Running"
        (state / "of others").unlink()
        eventually(lambda: cluster.get_job(key).phase == "Succeeded", what="it goes on")
        told = [event.reason for event in cluster.list_events(key)]
        assert told.count("PyTorchJobSucceeded") == 1
        assert not list(state.rglob(".*"))


def test_an_event_that_finds_no_room_is_no_half_line(tmp_path):
    """The next one that does is read, and so are those before."""
    state = tmp_path / "state"
    with _volume(state), LocalCluster(state) as cluster:
        key = cluster.create_job(job("full", None, replica("exit 0"))).key
        eventually(lambda: cluster.get_job(key).finished, what="it has ended")
        _fill(state)
        with pytest.raises(errors.ClusterUnavailable, match="No space left on device"):
            cluster.emit(key, Event("Long", "x" * (1 << 20)))
        (state / "of others").unlink()
        cluster.emit(key, Event("Short", "y"))
        assert cluster.list_events(key)[-1].reason == "Short"


def test_leaving_with_a_full_state_folder_ends_everything(tmp_path, caplog):
    """What cannot be noted any more is told in a sentence; the next command calls it failed."""
    state = tmp_path / "state"
    with _volume(state):
        with LocalCluster(state) as cluster:
            key = cluster.create_job(job("full", None, replica("exec sleep 3600"))).key
            eventually(lambda: cluster.get_job(key).phase == "Running", what="it runs")
            pids = cluster.processes(key, "full-worker-0", "pytorch")
            _fill(state)
            with pytest.raises(errors.ClusterUnavailable, match="ROVER_KF_STATE"):
                cluster.delete_job(key)
        assert "is not noted" in caplog.text
        assert not [pid for pid in pids if pathlib.Path(f"/proc/{pid}").exists()]
        (state / "of others").unlink()
        with LocalCluster(state) as cluster:
            assert cluster.get_job(key).phase == "Failed"
