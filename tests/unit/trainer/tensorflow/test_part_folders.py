# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Folders that parameter servers have written to are taken whole or not at all."""

from __future__ import annotations

import dataclasses
import json

import pytest

from rover_kf import errors
from rover_kf.trainer.tensorflow.part_folders import SaveFolder, SaveFolders

FILES = {"state.data-00000-of-00001": b"x" * 1000, "state.index": b"an index"}


@pytest.fixture
def parts(tmp_path):
    """Of a job in its third round."""
    return SaveFolders(tmp_path / "shards" / "job", 3)


def written(parts, step=7):
    """A folder as servers leave it."""
    folder = parts.create(step)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return folder


def test_a_folder_is_found_by_its_text(parts):
    """Two saves of one step have folders of their own, named by step and round."""
    folder, other = written(parts), written(parts)
    assert folder != other
    assert folder.name.startswith("step-000000000007-3.")
    part = parts.sync(folder)
    assert part.files == {name: len(content) for name, content in FILES.items()}
    assert parts.verify(SaveFolder.from_text(part.to_text())) == folder
    parts.remove(folder)
    with pytest.raises(errors.CorruptSnapshot, match="No such file"):
        parts.verify(part)
    assert parts.verify(parts.sync(other)) == other


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("state.data-00000-of-00001", b"x" * 999, "has 999 bytes where 1000 were written"),
        ("state.index", b"an indeX", "differs from its checksum"),
    ],
)
def test_other_bytes_are_told(parts, name, content, says):
    """Sizes of all, the checksum of the index; servers look at what they read themselves."""
    part = parts.sync(folder := written(parts))
    (folder / name).write_bytes(content)
    with pytest.raises(errors.CorruptSnapshot, match=says):
        parts.verify(part)


@pytest.mark.parametrize(
    "change",
    [{"folder": "../other"}, {"files": {"../../passwd": 1}}, {"folder": ""}, {"folder": ".."}],
)
def test_a_text_leads_nowhere_else(parts, change):
    """It comes with a state, perhaps from another pod or from storage."""
    told = dataclasses.asdict(parts.sync(written(parts))) | change
    with pytest.raises(errors.CorruptSnapshot, match="leads out"):
        SaveFolder.from_text(json.dumps(told))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"folder": "a", "files": [], "index": 0}'])
def test_a_text_that_is_something_else_is_refused(text):
    """With what it is."""
    with pytest.raises(errors.CorruptSnapshot, match="names no servers' files"):
        SaveFolder.from_text(text)


def test_where_nothing_can_be_written_is_told(tmp_path):
    """The folder, and the system's own words."""
    (tmp_path / "shards").write_text("a file")
    with pytest.raises(errors.CheckpointError, match=r"cannot be made: .*Not a directory"):
        SaveFolders(tmp_path / "shards", 1).create(1)
