# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the Event of a folder that refuses a checkpoint tells."""

from __future__ import annotations

import errno
import os

import pytest

from rover_kf import errors
from rover_kf.checkpoint.format.manifest import Manifest
from rover_kf.checkpoint.storage.directory import DirectoryStorage
from rover_kf.checkpoint.storage.syscalls import Syscalls
from tests.support.states import identities


class _Refusing(Syscalls):
    """A file system on which nothing can be made."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def create(self, *_, **__):
        raise OSError(self._number, os.strerror(self._number))


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "No space left on device; free some room, enlarge the volume"),
        (errno.EDQUOT, "let fewer stay (checkpoint.keep)"),
        (errno.EACCES, f"Permission denied; user {os.geteuid()} may not: change the folder's"),
        (errno.EROFS, "mount the volume so that it may be written"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_refusal_says_what_to_do(tmp_path, number, advice):
    """With the reason in the system's words."""
    storage = DirectoryStorage(tmp_path / "demo", _Refusing(number))
    with pytest.raises(errors.StorageError) as refused:
        storage.write_manifest(
            Manifest(
                "",
                identities.state(5),
                identities.state(5),
                world_size=1,
                replicated=True,
                files=(),
            )
        )
    assert advice in str(refused.value)
