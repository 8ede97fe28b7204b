# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The files of a state that is a folder: what a DirectoryCheckpointer has saved."""

from __future__ import annotations

import mmap
import pathlib
import tempfile

from rover_kf.checkpoint_tools import safetensors_file
from rover_kf.checkpoint_tools.consolidated_state import ConsolidatedState
from rover_kf.trainer.directory import checkpointer, folder_scan

_KEY, _CONTENT, _LATER = "folder", {"files", "folders", "links"}, {"modes"}
"""What older versions have not saved stands last."""


def is_directory_state(state: ConsolidatedState) -> bool:
    """Whether the state is a folder and nothing else."""
    tree = state.tree()
    inside = tree.get(_KEY)
    return len(tree) == 1 and isinstance(inside, dict) and inside.keys() - _LATER == _CONTENT


def write(state: ConsolidatedState, path: pathlib.Path) -> None:
    """Put the files, folders and links where they were, below a folder.

    Args:
        state: to write; it is one.
        path: of the folder; empty.

    Raises:
        CorruptSnapshot: a file of the checkpoint is damaged, or a path leads out of the folder.
        StorageError: the storage cannot be read.
        OSError: a file cannot be written.
    """
    listed = folder_scan.from_plain(state.tree())
    with tempfile.TemporaryFile(dir=path.parent) as scratch:
        safetensors_file.fill(state, scratch.fileno())
        with mmap.mmap(scratch.fileno(), state.assembly.length, access=mmap.ACCESS_READ) as buffer:
            checkpointer.write_files(listed, state.content, buffer, path)
