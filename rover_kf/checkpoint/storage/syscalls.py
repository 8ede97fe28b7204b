# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The system calls by which a checkpoint reaches storage, a method each.

Storage uses nothing else to change the file system, so that a test can stop it after any single
call and see what a crash there leaves.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pathlib
import shutil
import stat


class Syscalls:
    """Calls of the operating system; errors are OSError."""

    def make_folder(self, path: pathlib.Path) -> None:
        """Create a folder and those above it; one that exists is no error."""
        path.mkdir(parents=True, exist_ok=True)

    def create(self, path: pathlib.Path, *, direct: bool = False) -> int:
        """Make a file for writing, locked until it is closed; one that is there is an error.

        Args:
            path: of the file; a link in its place is an error too, wherever it leads.
            direct: past the page cache, if the file system can.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        if direct:
            try:
                return _locked(os.open(path, flags | os.O_DIRECT, 0o644))
            except OSError as refused:
                if refused.errno != errno.EINVAL:
                    raise
            self.remove(path)  # Some kernels make the file and refuse to open it.
        return _locked(os.open(path, flags, 0o644))

    def is_direct(self, descriptor: int) -> bool:
        """Whether an open file is written past the page cache."""
        return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)

    def make_buffered(self, descriptor: int) -> None:
        """Write through the page cache from now on."""
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        """Write some of the data; returns how much."""
        return os.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        """Wait until the file's bytes are on the storage."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Close a file."""
        os.close(descriptor)

    def rename(self, source: pathlib.Path, target: pathlib.Path) -> None:
        """Put a file in another's place, at once."""
        source.replace(target)

    def link(self, source: pathlib.Path, target: pathlib.Path) -> None:
        """Give a file a second name, at once; a name that is taken is an error."""
        target.hardlink_to(source)

    def sync_folder(self, path: pathlib.Path) -> None:
        """Wait until the folder's names are on the storage."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, path: pathlib.Path) -> None:
        """Remove a file; one that is gone is no error."""
        path.unlink(missing_ok=True)

    def remove_abandoned(self, path: pathlib.Path) -> None:
        """Remove a file that its writer, which locks it, has left; one that is gone is no error.

        Nothing is removed where the file system has no locks.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return
        try:
            if _lock(descriptor):
                path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)

    def remove_folder(self, path: pathlib.Path) -> None:
        """Remove an empty folder."""
        path.rmdir()

    def remove_tree(self, path: pathlib.Path) -> None:
        """Remove a folder and what is in it; where links lead to stays, also if they come late."""
        shutil.rmtree(path)

    def size(self, path: pathlib.Path) -> int | None:
        """Bytes of a file; None if there is none, or something that is no plain file."""
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None


def _locked(descriptor: int) -> int:
    _lock(descriptor)
    return descriptor


def _lock(descriptor: int) -> bool:
    """Lock a file until it is closed; False where another process has, or where nothing locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
