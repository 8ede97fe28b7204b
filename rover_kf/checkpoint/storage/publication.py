# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Files of a folder that appear whole, each under a name that never existed.

Every attempt writes aside under a random name, syncs, and links the file to its final name, which
must be free. A file server may carry out a call of a killed writer late. That call acts on the
files of its own attempt: it cannot replace what another attempt has published, as a rename would.

A writer locks what it writes aside, so that the next attempt removes only what was abandoned.
"""

from __future__ import annotations

import contextlib
import errno
import pathlib
import secrets
from collections.abc import Iterable, Iterator

from rover_kf.checkpoint.format import checksum
from rover_kf.checkpoint.storage.direct_io import DirectFile
from rover_kf.checkpoint.storage.syscalls import Syscalls

PART = ".part"
"""At the end of the names of what is written aside."""

_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""What file systems without hard links answer (FAT, SMB, many in user space)."""
_TOKEN_BYTES = 4


class LinksUnsupported(Exception):
    """The file system has no hard links."""


class Publisher:
    """The way of files to their names; errors are OSError.

    Args:
        files: how the file system is changed.
    """

    def __init__(self, files: Syscalls) -> None:
        self._files = files

    @contextlib.contextmanager
    def staged(
        self, path: pathlib.Path, content: Iterable[memoryview]
    ) -> Iterator[tuple[pathlib.Path, int]]:
        """Write a file aside; where, and its CRC-32C. It is gone if anything fails."""
        part = path.with_name(f"{path.name}.{token()}{PART}")
        file = DirectFile(self._files, part)
        try:
            try:
                with checksum.concurrent_checksum() as written:
                    for piece in content:
                        with written.updating(piece):
                            file.put(piece)
                file.finish()
                yield part, written.value
            finally:
                file.close()  # and drop the lock
        except Exception:  # raised again, whatever it is
            # What could be written may be all the room that the next attempt needs.
            with contextlib.suppress(OSError):
                self._files.remove(part)
            raise

    def link(self, part: pathlib.Path, path: pathlib.Path) -> bool:
        """Publish a file; safe when it returns. False if the name is taken: nothing has changed.

        Raises:
            LinksUnsupported: the file system has none.
        """
        try:
            self._files.link(part, path)
        except FileExistsError:
            return False
        except OSError as cause:
            if cause.errno not in _NO_LINKS:
                raise
            raise LinksUnsupported from cause
        self._files.remove(part)
        self._files.sync_folder(path.parent)
        return True

    def rename(self, part: pathlib.Path, path: pathlib.Path) -> None:
        """Put a file in the place of the one that is there; safe when it returns."""
        self._files.rename(part, path)
        self._files.sync_folder(path.parent)

    def remove_abandoned(self, folder: pathlib.Path, prefix: str) -> None:
        """Remove what writers that are gone have left aside for names with that prefix."""
        for part in sorted(folder.glob(f"{prefix}*{PART}")):
            self._files.remove_abandoned(part)


def token() -> str:
    """A name's part that no other attempt has."""
    return secrets.token_hex(_TOKEN_BYTES)
