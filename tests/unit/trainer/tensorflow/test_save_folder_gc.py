# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What servers have written of older steps goes, and never what a step that is held names."""

from __future__ import annotations

import pathlib

import pytest

from rover_kf import DirectoryCheckpointer, errors
from rover_kf.api import names
from rover_kf.api.checkpoints import RestorableStepsReply, RestorableStepsRequest
from rover_kf.trainer import settings as trainer_settings
from rover_kf.trainer.sidecar_client import SidecarClient
from rover_kf.trainer.tensorflow.part_folders import SaveFolder, SaveFolderGc, SaveFolders
from tests.support.pods import checkpoint_pod
from tests.support.waiting import eventually

TEXT = "shards"


class Chief:
    """Saves as a chief's program does, with files in place of servers'.

    Args:
        pod: with its sidecar.
        root: the job's folder on the shared volume.
        round_: that runs.
    """

    def __init__(self, pod: checkpoint_pod.Pod, root: pathlib.Path, round_: int) -> None:
        self.folder, self.parts = root.parent / f"state-{round_}", SaveFolders(root, round_)
        self.link, self.root = SidecarClient(pod.settings.volume_path), root
        known = trainer_settings.read(pod.environment(round_=round_))
        self.saver = DirectoryCheckpointer(settings=known)
        self.sweep = SaveFolderGc(self.parts, self.held)
        self.folder.mkdir()

    def held(self) -> tuple[int, ...]:
        """Steps that the sidecar knows of."""
        return self.link.request(
            names.PATH_HELD, RestorableStepsRequest(0), RestorableStepsReply, timeout=10.0
        ).steps

    def write(self, step: int, *, whole: bool = True) -> pathlib.Path:
        """A folder as servers leave it."""
        made = self.parts.create(step)
        (made / "state.data-00000-of-00001").write_text(f"state {step}")
        if whole:
            (made / "state.index").write_text("index")
        return made

    def save(self, step: int) -> None:
        """A whole save."""
        (self.folder / TEXT).write_text(self.parts.sync(self.write(step)).to_text())
        self.saver.save(step, self.folder)

    def steps(self) -> list[int]:
        """Whose folders there are."""
        return sorted(int(path.name.split("-")[1]) for path in self.root.iterdir())


def test_what_is_held_stays_and_the_rest_goes(tmp_path):
    """Two newest in memory, on storage the last two and those that 40 divides. A folder goes at the
    second look that finds it nowhere; the next program goes on with that, and what a killed save
    has left goes, too, beside a step of the same number that is held."""
    policy = {"checkpoint_keep": 2, "checkpoint_keep_every": 40, "checkpoint_persist_seconds": 0.0}
    root, storage = tmp_path / "shards", tmp_path / "storage"
    with checkpoint_pod.pods(tmp_path, 1, storage=storage, **policy) as (pod,):
        chief = Chief(pod, root, 1)
        for step in range(10, 140, 10):
            chief.save(step)
            assert chief.saver.wait(step)
            known = {*range(40, step, 40), *range(max(step - 10, 10), step + 10, 10)}
            # Storage removes what is older only after it has told.
            eventually(lambda: set(chief.held()) == known, what=f"{known}")  # noqa: B023
            chief.sweep.collect()
            assert known <= set(chief.steps())
        assert chief.held() == (40, 80, 120, 130)
        assert chief.steps() == [40, 80, 110, 120, 130]
        chief.write(120, whole=False)  # and is killed
        chief.write(140)
        after = Chief(pod, root, 2)
        step = after.saver.restore(tmp_path / "back")
        part = SaveFolder.from_text((tmp_path / "back" / TEXT).read_text())
        content = after.parts.verify(part) / "state.data-00000-of-00001"
        assert (step, content.read_text()) == (130, "state 130")
        after.save(150)
        after.sweep.collect()
        assert after.steps() == [40, 80, 110, 120, 120, 130, 140, 150]
        after.sweep.collect()
        assert set(after.held()) >= {40, 80, 130, 150}
        assert after.steps() == sorted(set(after.held()))


def test_what_is_being_persisted_stays(tmp_path):
    """No memory holds it any more, and its checkpoint on storage is not finished."""
    storage = tmp_path / "storage"
    with checkpoint_pod.pods(tmp_path, 1, storage=storage, checkpoint_persist_seconds=3600.0) as (
        pod,
    ):
        chief = Chief(pod, tmp_path / "shards", 1)
        chief.save(10)
        assert chief.saver.wait(10)
        chief.write(15)  # newer, so that the retention of storage leaves it alone
        unfinished = storage / pod.settings.job / "step-000000000015-1"
        unfinished.mkdir()
        for _ in range(3):
            chief.sweep.collect()
        assert chief.steps() == [10, 15]
        unfinished.rmdir()
        chief.sweep.collect()
        assert chief.steps() == [10, 15]
        chief.sweep.collect()
        assert chief.steps() == [10]


def test_nothing_goes_where_nobody_can_tell(tmp_path):
    """The sidecar is away, or storage cannot be read: looks before it count no more."""
    storage = tmp_path / "storage"
    with checkpoint_pod.pods(tmp_path, 1, storage=storage) as (pod,):
        chief = Chief(pod, tmp_path / "shards", 1)
        for step in (10, 20, 30):
            chief.save(step)
        chief.write(5)
        chief.sweep.collect()
        job = storage / pod.settings.job
        assert chief.saver.wait(30)  # and nothing is written there from then on
        job.rename(tmp_path / "aside")
        job.write_text("no folder")
        with pytest.raises(errors.StorageError):
            chief.held()
        chief.sweep.collect()
        job.unlink()
        (tmp_path / "aside").rename(job)
        chief.sweep.collect()
        assert chief.steps()[0] == 5
        pod.kill()
        chief.sweep.collect()
        chief.sweep.collect()
        assert chief.steps()[0] == 5


def test_another_chief_is_left_alone(tmp_path):
    """One that is given up, and does not know, removes nothing of a newer round; what is not named
    as a folder of ours is nobody's."""
    newer = SaveFolders(tmp_path, 7).create(10)
    (tmp_path / "step-000000000010-1").mkdir()
    (tmp_path / "models").mkdir()
    older = SaveFolders(tmp_path, 6)
    own = older.create(10)
    sweep = SaveFolderGc(older, tuple)
    for _ in range(3):
        sweep.start()
        sweep.wait()
    assert not own.exists()
    assert newer.exists()
    assert len(list(tmp_path.iterdir())) == 3
