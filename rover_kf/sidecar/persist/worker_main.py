# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``python -m rover_kf.sidecar.persist.worker_main FD BUFFER_FD ROOT``: a folder's storage, alone.

A dead file server holds whoever asks for its files in the kernel, where nothing but its return, or
a kill, ends the wait. So the sidecar asks through this process, which it can do without. One
request at a time comes over the socket; what is read goes through the shared buffer. Every frame
tells the sidecar that the storage answers. When the sidecar is gone, nothing more is changed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pathlib
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from rover_kf import errors
from rover_kf.api import codec
from rover_kf.api.states import RoundId, State
from rover_kf.checkpoint.format import manifest
from rover_kf.checkpoint.format.chunks import CHUNK_BYTES
from rover_kf.checkpoint.format.manifest import CheckpointFolder, Manifest, RankFile
from rover_kf.checkpoint.storage.claim import Claim
from rover_kf.checkpoint.storage.directory import DirectoryStorage
from rover_kf.checkpoint.storage.rank_content import SlotContent
from rover_kf.checkpoint.storage.retention import KeepBest, RetentionExceptions
from rover_kf.checkpoint.storage.syscalls import Syscalls
from rover_kf.sidecar.persist import worker_protocol

_NICE = 10
_NOTIFY_SECONDS = 0.5


class _ParentGone(BaseException):
    """The sidecar is; its successor may write the same files."""


class _ParentPipe:
    """The sidecar, at the other end."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel, self._notified_at = channel, 0.0

    def receive(self) -> tuple[dict[str, Any], bytes]:
        try:
            return worker_protocol.receive(self._channel)
        except (EOFError, OSError) as gone:
            raise _ParentGone from gone

    def send(self, blob: bytes = b"", **words: object) -> None:
        try:
            worker_protocol.send(self._channel, words, blob)
        except OSError as gone:
            raise _ParentGone from gone

    def notify_alive(self) -> None:
        """The storage has answered just now; the sidecar hears of it now and then."""
        now = time.monotonic()
        if now - self._notified_at >= _NOTIFY_SECONDS:
            self._notified_at = now
            self.send(alive=True)


class _TracedFiles(Syscalls):
    """System calls, of which the sidecar hears; what is to be synced it hears before."""

    def __init__(self, parent: _ParentPipe) -> None:
        self._parent = parent
        self._cached = 0

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        """Write some of the data; returns how much."""
        done = super().write(descriptor, data)
        self._cached += 0 if self.is_direct(descriptor) else done
        return done

    def sync(self, descriptor: int) -> None:
        """Wait until the file's bytes are on the storage."""
        self._parent.send(syncing=self._cached)
        self._cached = 0
        super().sync(descriptor)

    def remove(self, path: pathlib.Path) -> None:
        """Remove a file; one that is gone is no error."""
        super().remove(path)
        self._parent.notify_alive()

    def remove_tree(self, path: pathlib.Path) -> None:
        """Remove a folder and what is in it."""
        super().remove_tree(path)
        self._parent.notify_alive()

    def size(self, path: pathlib.Path) -> int | None:
        """Bytes of a file; None if there is none."""
        found = super().size(path)
        self._parent.notify_alive()
        return found


class _TracedStorage(DirectoryStorage):
    """A folder, of whose pieces and manifests the sidecar hears."""

    def __init__(self, root: pathlib.Path, parent: _ParentPipe) -> None:
        super().__init__(root, _TracedFiles(parent))
        self._parent = parent

    def read_manifest(self, folder: CheckpointFolder) -> Manifest:
        """Read a manifest; its files are not looked at."""
        found = super().read_manifest(folder)
        self._parent.notify_alive()
        return found

    def read_range(
        self, folder: CheckpointFolder, file: RankFile, offset: int, length: int
    ) -> Iterator[memoryview]:
        """A range of a rank's file; each piece is valid until the next is asked for."""
        for piece in super().read_range(folder, file, offset, length):
            self._parent.notify_alive()
            yield piece


class _RequestLoop:
    """One method for each request; its answer is one frame."""

    def __init__(self, root: pathlib.Path, parent: _ParentPipe, buffer: mmap.mmap) -> None:
        self._storage, self._parent = _TracedStorage(root, parent), parent
        self._buffer = memoryview(buffer)

    def handle(self, words: dict[str, Any], blob: bytes) -> None:
        call: Callable[[dict[str, Any], bytes], Any] = getattr(self, f"_{words['call']}")
        try:
            found = call(words, blob)
        except errors.RoverError as error:
            self._parent.send(error=type(error).__name__, message=str(error))
        except OSError as error:
            # Of a slot that is written; the storage's own are told as StorageError already.
            kind = "CorruptSnapshot" if words["call"] == "write_rank" else "StorageError"
            self._parent.send(error=kind, message=str(error))
        else:
            kept = found if isinstance(found, bytes) else b""
            self._parent.send(kept, done=None if isinstance(found, bytes) else found)

    def _folder(self, words: dict[str, Any]) -> CheckpointFolder:
        return self._storage.folder(codec.decode(State, words["state"]))

    def _write_rank(self, words: dict[str, Any], blob: bytes) -> list[Any]:
        ranges = tuple((begin, end) for begin, end in words["ranges"])
        content = SlotContent(pathlib.Path(words["slot"]), words["slot_bytes"], ranges, blob)
        pieces = self._acknowledged(content.chunks())
        folder = self._folder(words)
        file = self._storage.write_rank(folder, words["rank"], pieces, content.length)
        return [file.name, file.length, file.checksum]

    def _acknowledged(self, content: Iterator[memoryview]) -> Iterator[memoryview]:
        """Each piece once the sidecar says so, which then still keeps the slot pinned.

        One more word comes behind the last: what a sidecar that died had pinned may be anything.
        """
        for piece in content:
            self._parent.send(next=len(piece))
            self._parent.receive()
            yield piece
        self._parent.send(next=0)
        self._parent.receive()

    def _claim(self, words: dict[str, Any], _: bytes) -> None:
        self._storage.claim(codec.decode(Claim, words["claim"]))

    def _last_generation(self, _words: dict[str, Any], _: bytes) -> int:
        return self._storage.last_generation()

    def _write_manifest(self, words: dict[str, Any], blob: bytes) -> None:
        self._storage.write_manifest(manifest.from_bytes(blob, self._folder(words)))

    def _settle(self, words: dict[str, Any], _: bytes) -> None:
        self._storage.ensure_durable(self._folder(words))

    def _folders(self, _words: dict[str, Any], _: bytes) -> list[Any]:
        return _folder_keys(self._storage.folders())

    def _whole(self, _words: dict[str, Any], _: bytes) -> list[Any]:
        return _folder_keys(self._storage.complete_folders())

    def _sizes(self, words: dict[str, Any], _: bytes) -> dict[str, int]:
        return dict(self._storage.sizes(self._folder(words)))

    def _read_manifest(self, words: dict[str, Any], _: bytes) -> bytes:
        return manifest.to_bytes(self._storage.read_manifest(self._folder(words)))

    def _verify(self, words: dict[str, Any], _: bytes) -> bytes:
        return manifest.to_bytes(self._storage.verify(self._folder(words)))

    def _remove(self, words: dict[str, Any], _: bytes) -> None:
        self._storage.remove(self._folder(words))

    def _collect(self, words: dict[str, Any], _: bytes) -> list[Any]:
        best = KeepBest.parse(words["best"]) if words["best"] else None
        spare = RetentionExceptions(words["every"], best)
        current = codec.decode(RoundId, words["of"])
        gone = self._storage.collect(
            words["keep"],
            current=current,
            spare=spare,
            below=codec.decode(State, words["below"]),
        )
        return _folder_keys(gone)

    def _read_range(self, words: dict[str, Any], _: bytes) -> None:
        file = RankFile(words["rank"], words["name"], words["size"], words["checksum"])
        place = self._folder(words), file, words["offset"], words["length"]
        for piece in self._storage.read_range(*place):
            self._buffer[: len(piece)] = piece
            self._parent.send(piece=len(piece))
            self._parent.receive()


def _folder_keys(folders: tuple[CheckpointFolder, ...]) -> list[Any]:
    return [codec.encode(folder.state) for folder in folders]


def main() -> int:
    """Answer until the sidecar is gone."""
    channel, buffer = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    os.setpriority(os.PRIO_PROCESS, 0, max(_NICE, os.getpriority(os.PRIO_PROCESS, 0)))
    parent = _ParentPipe(channel)
    desk = _RequestLoop(pathlib.Path(sys.argv[3]), parent, mmap.mmap(buffer, CHUNK_BYTES))
    with contextlib.suppress(_ParentGone):
        parent.send(ready=True)
        while True:
            desk.handle(*parent.receive())
    return 0


if __name__ == "__main__":
    sys.exit(main())
