# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Folders whose server does not answer: a file system in user space that nobody serves, and one
that is frozen. The first holds whoever looks at it until a kill, as a dead NFS server does; the
second whoever writes, against every signal, as a dead disk does.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import struct
import subprocess
import threading
from collections.abc import Iterator

import pytest

_HEADER = struct.Struct("<IIQQIIIHH")
_INIT, _VERSION, _MINOR = 26, 7, 31


def must_be_root() -> None:
    """Skip where nothing can be mounted; with CI set that is a failure."""
    usable = os.geteuid() == 0 and os.access("/dev/fuse", os.R_OK | os.W_OK)
    if not usable:
        reason = "not root, or no /dev/fuse: a file system that hangs cannot be mounted"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


class Silence:
    """A file system over a folder that answers nobody, until it is lifted."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other"
        line = ["mount", "-i", "-t", "fuse", "-o", options, "silence", str(folder)]
        subprocess.run(line, check=True, pass_fds=(self._device,))
        self._greet()

    def _greet(self) -> None:
        """Answer the kernel's first request, so that all that follows is sent and waits."""
        request = os.read(self._device, 1 << 17)
        _, code, unique, *_ = _HEADER.unpack_from(request)
        assert code == _INIT
        body = struct.pack("<IIIIHHII", _VERSION, _MINOR, 0, 0, 12, 9, 1 << 16, 1).ljust(64, b"\0")
        os.write(self._device, struct.pack("<IiQ", 16 + len(body), 0, unique) + body)

    def lift(self) -> None:
        """Take it away: whoever waited gets an error, whoever comes finds the folder again."""
        if self._device >= 0:
            os.close(self._device)
            self._device = -1
            subprocess.run(["umount", "--lazy", str(self._folder)], check=True)


@contextlib.contextmanager
def silent(folder: pathlib.Path) -> Iterator[Silence]:
    """The folder hangs until the silence is lifted, or the context ends."""
    silence = Silence(folder)
    try:
        yield silence
    finally:
        silence.lift()


class Disk:
    """A file system of its own in a file, which can be frozen."""

    def __init__(self, folder: pathlib.Path, mebibytes: int) -> None:
        self.folder = folder
        self._image = folder.with_suffix(".image")
        self._image.touch()
        os.truncate(self._image, mebibytes << 20)
        subprocess.run(["mkfs.ext4", "-q", str(self._image)], check=True)
        folder.mkdir()
        subprocess.run(["mount", "-o", "loop", str(self._image), str(folder)], check=True)
        self._frozen = threading.Event()

    def freeze(self) -> None:
        """Let no write return any more."""
        subprocess.run(["fsfreeze", "--freeze", str(self.folder)], check=True)
        self._frozen.set()

    def thaw(self) -> None:
        """Let all of them go on."""
        if self._frozen.is_set():
            self._frozen.clear()
            subprocess.run(["fsfreeze", "--unfreeze", str(self.folder)], check=True)

    def close(self) -> None:
        """Take it away."""
        self.thaw()
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


@contextlib.contextmanager
def disk(folder: pathlib.Path, mebibytes: int = 128) -> Iterator[Disk]:
    """A disk at a folder that is not there yet."""
    made = Disk(folder, mebibytes)
    try:
        yield made
    finally:
        made.close()
