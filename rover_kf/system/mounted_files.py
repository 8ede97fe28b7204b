# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Files of a mounted Secret or ConfigMap, all of the same moment.

The kubelet writes them anew when the object changes: into another folder, to which one link is then
turned. Who reads them one by one could get some of the former object and some of the next one.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterable

_CURRENT = "..data"
"""The link that the kubelet turns to a folder of new files."""
_ATTEMPTS = 5


def read(folder: pathlib.Path, filenames: Iterable[str]) -> dict[str, bytes]:
    """The content of those files that are there.

    Args:
        folder: the mount's path.
        filenames: names of files.

    Raises:
        OSError: they cannot be read, or change all the time.
    """
    filenames = tuple(filenames)
    for _ in range(_ATTEMPTS):
        current, found = _current(folder), {}
        for name in filenames:
            with contextlib.suppress(FileNotFoundError):
                found[name] = (current / name).read_bytes()
        if current == _current(folder):
            return found
    raise BlockingIOError(f"what is mounted at {folder} changes all the time")


def _current(folder: pathlib.Path) -> pathlib.Path:
    data = folder / _CURRENT
    return pathlib.Path(os.path.realpath(data if data.is_symlink() else folder))
