# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whether storage has to be asked at a restart, and what of it is taken."""

from __future__ import annotations

import json
import pathlib

import crc32c
import pytest

from rover_kf import errors
from rover_kf.api.checkpoints import RestoreStepRequest, SlotInfo
from rover_kf.checkpoint.format import manifest
from rover_kf.checkpoint.format.manifest import CheckpointFolder, Manifest
from rover_kf.checkpoint.resharding import step_selection
from rover_kf.checkpoint.storage.directory import DirectoryStorage
from tests.support.states import identities


def _holds(step: int) -> list[RestoreStepRequest]:
    slot = SlotInfo(
        pod="pod-0",
        address="10.0.0.1:7411",
        local_rank=0,
        rank=0,
        world_size=1,
        replicated=True,
        snapshot_bytes=9,
        checksum=step,
        pieces=False,
        state=identities.state(step),
    )
    return [
        RestoreStepRequest(
            round=identities.round_id(5), rank=0, world_size=1, slots=(slot,) if step else ()
        )
    ]


@pytest.mark.parametrize(
    ("in_memory", "known", "asks"),
    [
        (20, 20, False),
        (20, 10, False),
        (20, 0, False),
        (20, 30, True),  # another pod has lost what was newer
        (20, None, True),  # storage did not answer when this coordinator began
        (0, 0, True),  # what is there was not seen by the ledger: nobody begins anew unasked
    ],
)
def test_storage_is_asked_where_it_may_be_newer(tmp_path, in_memory, known, asks):
    """The job's folder cannot be listed: who asks it is told, who need not ask restores."""
    (tmp_path / "job").write_text("no folder")
    told: list[str] = []
    storage, requests = DirectoryStorage(tmp_path / "job"), _holds(in_memory)
    knowledge = {
        "scanned": known is not None,
        "committed": identities.state(known) if known else None,
    }
    if in_memory:
        found = step_selection.select_step(storage, requests, (), told.append, **knowledge)
        assert (found[0].state.step, found[0].source) == (in_memory, "memory")
    else:
        with pytest.raises(errors.StorageError):
            step_selection.select_step(storage, requests, (), told.append, **knowledge)
    assert bool(told) == asks


class Failing(DirectoryStorage):
    """Steps 10 and 20 are there; so often a read of the newer one fails, as with EIO."""

    def __init__(self, root: pathlib.Path, failures: int) -> None:
        super().__init__(root)
        self.failures = failures
        for step in (10, 20):
            self.write_manifest(
                Manifest(
                    "",
                    identities.state(step),
                    identities.state(step),
                    world_size=1,
                    replicated=True,
                    files=(self._written(step),),
                )
            )

    def _written(self, step: int):
        return self.write_rank(
            self.folder(identities.state(step)), 0, iter([memoryview(b"state")]), 5
        )

    def load(self, folder: CheckpointFolder) -> Manifest:
        if folder.step == 20 and self.failures:
            self.failures -= 1
            raise errors.StorageError("rank-00000.safetensors cannot be read: EIO")
        return super().load(folder)


def test_a_read_that_fails_is_no_damage(tmp_path):
    """It is tried again, and the newest checkpoint is taken; each failure is told."""
    told, pauses = [], []
    storage = Failing(tmp_path / "job", len(step_selection.PAUSES))
    found = step_selection.select_step(storage, _holds(0), (), told.append, pause=pauses.append)
    assert (found[0].state.step, found[0].source) == (20, "storage")
    assert tuple(pauses) == step_selection.PAUSES
    assert len(told) == len(pauses)
    assert "step-000000000020-1 cannot be read, trying again" in told[0]


@pytest.mark.parametrize("in_memory", [0, 10])
def test_what_cannot_be_read_is_not_left_behind(tmp_path, in_memory):
    """Nothing older is taken, of which retention would in the end remove the newer one; the error
    says how to do without it. That done, the older one is."""
    storage = Failing(tmp_path / "job", 99)
    with pytest.raises(errors.StorageError, match="cannot be read: EIO") as refused:
        step_selection.select_step(storage, _holds(in_memory), (), print, pause=lambda _: None)
    way_out = f"rover-kf checkpoint rm {tmp_path / 'job'} step-000000000020-1 --force"
    assert way_out in str(refused.value)
    storage.remove(storage.folder(identities.state(20)))
    assert step_selection.select_step(storage, _holds(in_memory), (), print)[0].state.step == 10


def test_memory_that_is_as_new_goes_before_what_cannot_be_read(tmp_path):
    """It is not even asked for."""
    storage = Failing(tmp_path / "job", 99)
    found = step_selection.select_step(storage, _holds(20), (), print)
    assert (found[0].state.step, found[0].source) == (20, "memory")


def test_a_round_that_is_over_does_not_try_again(tmp_path):
    """Nobody waits for it any more."""
    storage = Failing(tmp_path / "job", 99)
    with pytest.raises(errors.StorageError):
        step_selection.select_step(storage, _holds(0), (), print, pause=lambda _: True)
    assert storage.failures == 98


def test_a_step_0_that_is_there_is_restored(tmp_path):
    """As who counts from there has saved it by other means than a Checkpointer."""
    storage = DirectoryStorage(tmp_path / "job")
    file = storage.write_rank(
        storage.folder(identities.state(0)), 0, iter([memoryview(b"state")]), 5
    )
    storage.write_manifest(
        Manifest(
            "",
            identities.state(0),
            identities.state(0),
            world_size=1,
            replicated=True,
            files=(file,),
        )
    )
    found = step_selection.select_step(storage, _holds(0), (), print, scanned=True)
    assert (found[0].state.step, found[0].source) == (0, "storage")


def test_what_another_release_wrote_costs_a_step_and_stays(tmp_path):
    """The warning names it; with nothing else there the error does."""
    told: list[str] = []
    storage = Failing(tmp_path / "job", 0)
    newer = storage.folder(identities.state(20))
    path = pathlib.Path(newer.manifest_location)
    tree = json.loads(path.read_bytes())["manifest"] | {"format": 3}
    signed = {"manifest": tree, "crc32c": crc32c.crc32c(manifest._canonical(tree))}
    path.write_text(json.dumps(signed))
    found = step_selection.select_step(storage, _holds(0), (), told.append, pause=pytest.fail)
    assert found[0].state.step == 10
    assert "has format 3; this release reads 2" in told[0]
    storage.remove(storage.folder(identities.state(10)))
    with pytest.raises(errors.CheckpointError, match="has format 3"):
        step_selection.select_step(storage, _holds(0), (), told.append, pause=pytest.fail)
    assert storage.folders() == (newer,)


def test_damage_costs_a_step_at_once(tmp_path):
    """Fewer bytes than the manifest says: the older one is taken, without a pause."""
    told: list[str] = []
    storage = Failing(tmp_path / "job", 0)
    path = pathlib.Path(storage.folder(identities.state(20)).location) / "rank-00000.safetensors"
    path.write_bytes(b"stat")
    found = step_selection.select_step(storage, _holds(0), (), told.append, pause=pytest.fail)
    assert found[0].state.step == 10
    assert "has 4 bytes; the manifest says 5" in told[0]


def test_what_ranks_found_damaged_is_passed_over(tmp_path):
    """The coordinator itself reads no bytes of tensors; where all are damaged it says how."""

    class Unread(Failing):
        def read_range(self, *what):
            pytest.fail(f"{what} is read")

    storage = Unread(tmp_path / "job", 0)
    damages = {identities.state(20): "rank 1: rank-00001.safetensors has other bytes"}
    found = step_selection.select_step(storage, _holds(0), (), pytest.fail, damaged=damages)
    assert (found[0].state.step, found[0].source) == (10, "storage")
    damages[identities.state(10)] = "rank 0: rank-00000.safetensors has other bytes"
    with pytest.raises(errors.CheckpointError, match="none of the 2 checkpoints") as refused:
        step_selection.select_step(storage, _holds(0), (), pytest.fail, damaged=damages)
    assert "Of the newest: rank 1: rank-00001" in str(refused.value)
