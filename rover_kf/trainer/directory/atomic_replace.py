# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Where a folder is filled before it takes its place, and what killed processes left of such.

Standard library only: it enters the user's image. A process may be killed in every restore, as by
the kernel for memory: each would leave a whole state, where it is most often memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def staged_folder(root: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield an empty folder next to ``root``, which is to be created; remove it at the end.

    Raises:
        OSError: the file system refused.
    """
    root.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{root.name}-rover-"
    for left in root.parent.glob(f"{glob.escape(prefix)}*"):
        _remove_if_abandoned(left)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=root.parent) as made:
        path = pathlib.Path(made)
        with _open_folder(path) as descriptor:
            # The kernel drops it with its process. Where folders have no locks nothing is removed.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield path


def _remove_if_abandoned(path: pathlib.Path) -> None:
    with contextlib.suppress(OSError), _open_folder(path) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _open_folder(path: pathlib.Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
