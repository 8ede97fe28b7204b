# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which Storage a job's checkpoint path means: a folder, or a URL of an object store."""

from __future__ import annotations

import pathlib

from rover_kf import errors
from rover_kf.api import names
from rover_kf.checkpoint.storage.directory import DirectoryStorage
from rover_kf.checkpoint.storage.storage_protocol import Storage


def open_storage(path: str, job: str) -> Storage:
    """The storage of a job; nothing is read or written yet.

    Args:
        path: ``checkpoint.path``.
        job: name of the job.

    Raises:
        InputError: the path is a URL and the client for object stores is not installed.
    """
    if not path.startswith(names.OBJECT_SCHEMES):
        return DirectoryStorage(pathlib.Path(path) / job)
    try:
        # Not everybody has it: its wheels are of a few platforms.
        from rover_kf.checkpoint.storage.object_store import ObjectStorage  # noqa: PLC0415
    except ImportError as cause:
        raise errors.InputError(
            f"{names.PREFIX}checkpoint.path is {path}, for which obstore is needed: "
            "pip install 'rover-kf[storage]'"
        ) from cause
    return ObjectStorage(f"{path.rstrip('/')}/{job}")
