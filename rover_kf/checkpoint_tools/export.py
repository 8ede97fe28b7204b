# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A whole state written in a format that others read."""

from __future__ import annotations

import pathlib
from typing import Literal

from rover_kf import errors
from rover_kf.checkpoint_tools import atomic_file, directory_state, safetensors_file
from rover_kf.checkpoint_tools.consolidated_state import ConsolidatedState

Format = Literal["safetensors", "torch", "dcp", "folder"]
_DCP_MARK = ".metadata"


def export(
    state: ConsolidatedState, form: Format, out: pathlib.Path, *, force: bool = False
) -> None:
    """Write a state; what is read of the checkpoint is verified, and OUT is whole or not there.

    Args:
        state: of the rank whose own tensors and plain values are wanted.
        form: ``safetensors`` (one file, tensors by name), ``torch`` (one file, nested dicts) or
            ``dcp`` (a folder of torch.distributed.checkpoint); or ``folder``: the files that a
            DirectoryCheckpointer has saved.
        out: file or folder to make.
        force: replace what stands there, if it is of that kind.

    Raises:
        InputError: OUT may not be replaced, the format is not for this state, or for a type in it,
            or torch is needed and not installed.
        CorruptSnapshot: the checkpoint is damaged.
        StorageError: the storage cannot be read, or OUT cannot be written.
    """
    if form == "safetensors":
        with atomic_file.atomic_file(out, force=force) as path:
            safetensors_file.write(state, path)
        return
    is_folder = directory_state.is_directory_state(state)
    if is_folder != (form == "folder"):
        allowed = "folder or safetensors" if is_folder else "safetensors, torch or dcp"
        raise errors.InputError(f"--format {form} is not for what this script saved: {allowed} is")
    if form == "folder":
        # Whose files they are nothing tells: no folder that stands there is replaced.
        with atomic_file.atomic_folder(out, marker="", force=False) as path:
            directory_state.write(state, path)
        return
    try:
        # Slow to import, and not everybody who looks at checkpoints has it.
        from rover_kf.checkpoint_tools import torch_files  # noqa: PLC0415
    except ImportError as cause:
        raise errors.InputError(
            f"--format {form} needs torch: pip install 'rover-kf[torch]', or use safetensors"
        ) from cause
    if form == "torch":
        with atomic_file.atomic_file(out, force=force) as path:
            torch_files.write_file(state, path)
        return
    with atomic_file.atomic_folder(out, marker=_DCP_MARK, force=force) as path:
        torch_files.write_folder(state, path)
