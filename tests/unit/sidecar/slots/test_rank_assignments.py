# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a local rank is outlives its sidecar, also where the volume has no byte left."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess

import pytest

from rover_kf.sidecar.slots.rank_assignments import RankAssignment, RankAssignments
from tests.support.states import identities


@pytest.fixture
def volume(tmp_path):
    """A volume in memory of 64 KiB."""
    if os.geteuid() != 0:
        pytest.skip("not root: no volume can be mounted")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def _fill(volume: pathlib.Path) -> None:
    with contextlib.suppress(OSError), (volume / "filled").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_the_newest_is_read_by_who_takes_over(volume):
    """A world of two, then one of a hundred, then one of three: nothing of an older one is left."""
    (volume / "0").mkdir()
    for rank, size in ((1, 2), (99, 100), (0, 3)):
        RankAssignments(volume).set(0, RankAssignment(rank, size, identities.round_id(7)))
        assert RankAssignments(volume).get(0) == RankAssignment(rank, size, identities.round_id(7))


def test_the_file_is_written_as_soon_as_there_is_a_folder(tmp_path):
    """A replaced pod learns its rank before anything made room for its slots."""
    assignments = RankAssignments(tmp_path)
    assignments.set(0, RankAssignment(0, 2, identities.round_id(1)))
    (tmp_path / "0").mkdir()
    assignments.set(0, RankAssignment(0, 2, identities.round_id(1)))
    assert RankAssignments(tmp_path).get(0) == RankAssignment(0, 2, identities.round_id(1))


def test_in_a_full_volume_it_is_kept_all_the_same(volume):
    """The next round begins there, and the next sidecar knows it."""
    (volume / "0").mkdir()
    assignments = RankAssignments(volume)
    assignments.set(0, RankAssignment(0, 2, identities.round_id(1)))
    _fill(volume)
    assignments.set(0, RankAssignment(1, 3, identities.round_id(2)))
    assert RankAssignments(volume).get(0) == RankAssignment(1, 3, identities.round_id(2))


def test_the_first_one_in_a_full_volume_costs_a_warning_only(volume, caplog):
    """There is no room for the file: this sidecar still knows, the next one asks."""
    (volume / "0").mkdir()
    _fill(volume)
    assignments = RankAssignments(volume)
    assignments.set(0, RankAssignment(0, 2, identities.round_id(1)))
    assert assignments.get(0) == RankAssignment(0, 2, identities.round_id(1))
    assert "cannot be kept" in caplog.text
    assert RankAssignments(volume).get(0) is None
