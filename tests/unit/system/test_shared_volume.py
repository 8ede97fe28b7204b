# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a training process may leave in the volume that it shares with its sidecar, and what the
sidecar makes of it: nothing is read through a link, waited for, or read without end."""

from __future__ import annotations

import os
import pathlib

import pytest

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import ArenaRequest
from rover_kf.coordinator.replication.locations import SlotLocationStore
from rover_kf.coordinator.restore.plan_store import RestorePlanStore
from rover_kf.coordinator.shutdown import VERDICT_FILE, VerdictStore
from rover_kf.sidecar.slots.rank_assignments import RankAssignment
from rover_kf.sidecar.slots.slots import PodSlots
from rover_kf.sidecar.state_replica import COORDINATOR_FILE, StateFile
from rover_kf.system import shared_volume
from tests.support.pods import checkpoint_pod
from tests.support.states import identities

SECRET = b"the sidecar's own token"


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "token"
    path.write_bytes(SECRET)
    return path


@pytest.fixture
def slots(tmp_path):
    made = PodSlots(checkpoint_pod.settings_of(tmp_path))
    made.allocate(ArenaRequest(0, 4096))
    with made.arena(0).fill(only=0) as filling:
        filling.seal(
            state=identities.state(1), length=len(SECRET), rank=0, world_size=1, replicated=True
        )
    return made


def link(path: pathlib.Path, secret: pathlib.Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(secret)


def pipe(path: pathlib.Path, _: pathlib.Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def folder(path: pathlib.Path, _: pathlib.Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def endless(path: pathlib.Path, _: pathlib.Path) -> None:
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.truncate(1 << 40)


STRANGE = [link, pipe, folder]


@pytest.mark.parametrize("put", STRANGE, ids=lambda put: put.__name__)
def test_a_slot_that_is_no_file_is_torn(slots, secret, put):
    """Neither served, nor persisted, nor written to."""
    (seal,) = slots.arena(0).sealed()
    put(slots.arena(0).slot_path(0), secret)
    with pytest.raises(errors.CorruptSnapshot):
        slots.arena(0).pin(seal)
    with pytest.raises(errors.CorruptSnapshot):
        slots.checksum(0, seal)
    with pytest.raises(errors.CorruptSnapshot):
        slots.arena(0).fill(only=0)
    assert secret.read_bytes() == SECRET


@pytest.mark.parametrize("put", STRANGE, ids=lambda put: put.__name__)
def test_a_control_file_that_is_no_file_is_an_error(slots, secret, put):
    """Its records are not made up."""
    put(slots.arena(0).directory / "control", secret)
    with pytest.raises(OSError, match=r"not a file|symbolic links|No such device|Is a directory"):
        slots.arena(0).sealed()
    assert secret.read_bytes() == SECRET


def test_a_control_file_without_end_costs_its_records(slots):
    """A hole of a terabyte takes no memory of whoever reads it."""
    path = slots.arena(0).directory / "control"
    os.truncate(path, 1 << 40)
    assert [seal.state.step for seal in slots.arena(0).sealed()] == [1]


@pytest.mark.parametrize("put", [*STRANGE, endless], ids=lambda put: put.__name__)
def test_what_outlives_the_sidecar_is_read_from_files_alone(tmp_path, secret, put):
    """State, plan, verdict: as if there were none, and what is written leads nowhere."""
    (tmp_path / names.RUN_DIR).mkdir()
    for kept, name in (
        (StateFile(tmp_path, "uid", COORDINATOR_FILE), COORDINATOR_FILE),
        (RestorePlanStore(tmp_path, "uid"), "common-step.json"),
        (VerdictStore(tmp_path, "uid"), VERDICT_FILE),
        (SlotLocationStore(tmp_path, "uid"), "slot-places.json"),
    ):
        put(tmp_path / names.RUN_DIR / name, secret)
        assert not kept.read()
    link(tmp_path / names.RUN_DIR / f"{COORDINATOR_FILE}.part", secret)
    StateFile(tmp_path, "uid", COORDINATOR_FILE).write(1, None)
    assert secret.read_bytes() == SECRET


@pytest.mark.parametrize("put", [*STRANGE, endless], ids=lambda put: put.__name__)
def test_an_assignment_is_read_from_a_file_alone(slots, secret, put):
    """As if no training process had ever said which rank it is."""
    put(slots.arena(0).directory / "assignment.json", secret)
    assert slots.assignments.get(0) is None
    slots.assignments.set(0, RankAssignment(0, 1, identities.round_id(1)))
    assert secret.read_bytes() == SECRET


def test_folders_with_strange_names_are_no_ranks(slots):
    """Who trains may make folders, too."""
    root = slots.arena(0).directory.parent
    for name in ("²", "-1", "replica-x", "replica-", "replica-²", "9" * 30, "a b"):
        (root / name).mkdir()
        (root / name / "control").touch()
    assert slots.local_ranks() == (0,)
    assert slots.replicas() == ()


def test_no_more_is_read_than_may_be(tmp_path):
    """And what may be is read whole."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    assert shared_volume.read(path, 10) == b"x" * 10
    with pytest.raises(OSError, match="more than 9 bytes"):
        shared_volume.read(path, 9)
    shared_volume.replace(path, b"y")
    assert path.read_bytes() == b"y"
    with pytest.raises(FileNotFoundError):
        shared_volume.read(tmp_path / "none")
