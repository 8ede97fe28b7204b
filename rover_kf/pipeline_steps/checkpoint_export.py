# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job's checkpoint on storage, written as what a pipeline passes on."""

from __future__ import annotations

import pathlib
import typing

from rover_kf import errors
from rover_kf.checkpoint.format.manifest import Manifest
from rover_kf.checkpoint_tools.consolidated_state import open_state
from rover_kf.checkpoint_tools.export import Format, export
from rover_kf.checkpoint_tools.locate import locate


def export_model(
    path: str, out: pathlib.Path, *, job: str = "", step: int = -1, rank: int = 0, form: str
) -> Manifest:
    """Write one checkpoint whole; the manifest of which.

    Args:
        path: what ``checkpoint.path`` says, or with the job's name, or one checkpoint of it.
        out: file or folder to make.
        job: its name, where the path does not say it.
        step: of which; below 0: the newest that is whole.
        rank: whose own tensors and plain values are taken.
        form: safetensors, torch, dcp or folder.

    Raises:
        InputError: there is no such checkpoint or format, or it is not for this state.
        CorruptSnapshot: the checkpoint is damaged.
        StorageError: the storage cannot be read.
    """
    forms = typing.get_args(Format)
    if form not in forms:
        raise errors.InputError(f"form is {form!r}; allowed: {', '.join(forms)}")
    place = locate(f"{path.rstrip('/')}/{job}" if job else path)
    state = open_state(place.storage, place.checkpoint(None if step < 0 else step), rank)
    export(state, typing.cast("Format", form), out)
    return state.manifest
