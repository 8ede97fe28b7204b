# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Files of the volume that all containers of a pod may write, as the sidecar opens them.

Its own token is a file that the training processes must not have; a link that one of them leaves
in such a file's place would have the sidecar read it for them. So links are not followed, and what
is no file (a pipe would be waited for) or has no end (a hole costs nothing to make) is not read.
Standard library only.
"""

from __future__ import annotations

import errno
import os
import stat

MAX_BYTES = 64 << 20
"""Of a file that is read whole; the state of a job of ten thousand pods has a few."""


def open_file(path: str | os.PathLike[str], flags: int, mode: int = 0o666) -> int:
    """Open a file that is one, whatever was put in its place.

    Args:
        path: of the file.
        flags: as of os.open.
        mode: of a file that is made.

    Returns:
        Its descriptor.

    Raises:
        OSError: it cannot be opened, is a link, or is no regular file.
    """
    guarded = flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, guarded, mode)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "not a file; nothing of it is read", os.fspath(path))


def read(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> bytes:
    """A file's content.

    Args:
        path: of the file.
        max_bytes: bytes that it may have.

    Raises:
        OSError: it cannot be read, is a link or no file, or has more bytes.
    """
    with open(open_file(path, os.O_RDONLY), "rb") as file:
        found = file.read(max_bytes + 1)
    if len(found) > max_bytes:
        message = f"more than {max_bytes} bytes; nothing of it is read"
        raise OSError(errno.EFBIG, message, os.fspath(path))
    return found


def replace(path: str | os.PathLike[str], content: bytes) -> None:
    """Put content in the place of a file's, at once; it is written beside it first.

    Raises:
        OSError: it cannot be written.
    """
    aside = os.fspath(path) + ".part"
    descriptor = open_file(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
        file.write(content)
    os.replace(aside, path)  # noqa: PTH105 - a path as it was given
