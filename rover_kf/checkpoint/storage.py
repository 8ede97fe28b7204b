# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in a folder that outlives the pods (a PersistentVolume, a host's folder).

Sidecars write their ranks' files; the coordinator writes the manifest last, lists, verifies and
removes. Each file is written beside its place, synced, renamed, its folder synced: after a crash at
any point a checkpoint is whole, or has no manifest and is nothing.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator

from rover_kf import errors
from rover_kf.checkpoint import checksum, manifest, retention
from rover_kf.checkpoint.files import Files
from rover_kf.checkpoint.manifest import Folder, Manifest, RankFile

_PART = ".part"


class DirectoryStorage:
    """The checkpoints of one job.

    Args:
        root: ``<checkpoint.path>/<job>``; made when first written to.
        files: how the file system is changed.
    """

    def __init__(self, root: pathlib.Path, files: Files | None = None) -> None:
        self.root = root
        self._files = files or Files()

    def folder(self, step: int, generation: int) -> Folder:
        """Where that checkpoint is, or would be."""
        return Folder(generation, step, self.root / manifest.folder_name(step, generation))

    def write_rank(self, folder: Folder, rank: int, source: int, length: int) -> RankFile:
        """Copy a pinned slot's first ``length`` bytes into the rank's file, safe when it returns.

        Args:
            folder: of the checkpoint.
            rank: whose state it is.
            source: descriptor of the slot.
            length: bytes of the snapshot.

        Returns:
            The file with the CRC-32C of the bytes that were written.

        Raises:
            StorageFailed: the storage refused; nothing is left that could be taken for a file.
            TornSnapshot: the slot is shorter than ``length``.
        """
        name = manifest.file_name(rank)
        with _refusals(f"{folder.path / name} cannot be written"):
            self._make_folder(folder.path)
            written = self._put(folder.path / name, _pieces(source, length))
        return RankFile(rank, name, length, written)

    def write_manifest(self, content: Manifest) -> Folder:
        """Make the folder a checkpoint; safe when it returns.

        Raises:
            StorageFailed: the storage refused, or a rank's file is not there whole.
        """
        folder = self.folder(content.step, content.generation)
        with _refusals(f"{folder.manifest_path} cannot be written"):
            for file in content.files:
                size = (folder.path / file.name).stat().st_size
                if size != file.length:
                    raise errors.StorageFailed(
                        f"{folder.path / file.name} has {size} bytes, {file.length} were reported"
                    )
            self._put(folder.manifest_path, iter([memoryview(manifest.to_bytes(content))]))
        return folder

    def folders(self) -> tuple[Folder, ...]:
        """Every folder that is named like a checkpoint, oldest first.

        Raises:
            StorageFailed: the storage cannot be read.
        """
        with _refusals(f"{self.root} cannot be listed"):
            if not self.root.is_dir():
                return ()
            found = (manifest.parse_folder(path) for path in self.root.iterdir())
            return tuple(sorted(folder for folder in found if folder is not None))

    def whole(self) -> tuple[Folder, ...]:
        """Folders that have a manifest, oldest first; what it says is not checked yet.

        Raises:
            StorageFailed: the storage cannot be read.
        """
        return tuple(folder for folder in self.folders() if folder.manifest_path.is_file())

    def load(self, folder: Folder) -> Manifest:
        """Read a manifest and check that its files are there in their sizes.

        Raises:
            TornSnapshot: the manifest is damaged, or a file is missing or has another size.
            StorageFailed: the storage cannot be read.
        """
        with _refusals(f"{folder.manifest_path} cannot be read"):
            content = manifest.from_bytes(folder.manifest_path.read_bytes(), folder)
            for file in content.files:
                path = folder.path / file.name
                size = path.stat().st_size if path.is_file() else -1
                if size != file.length:
                    state = "is missing" if size < 0 else f"has {size} bytes"
                    raise errors.TornSnapshot(f"{path} {state}; the manifest says {file.length}")
        return content

    def verify(self, folder: Folder) -> Manifest:
        """Read every byte of a checkpoint and compare the checksums.

        Raises:
            TornSnapshot: something differs; the message names it.
            StorageFailed: the storage cannot be read.
        """
        content = self.load(folder)
        for file in content.files:
            with self.open_rank(folder, file) as descriptor:
                found = checksum.of_descriptor(descriptor, file.length)
            check(folder, file, found)
        return content

    @contextlib.contextmanager
    def open_rank(self, folder: Folder, file: RankFile) -> Iterator[int]:
        """A descriptor of a rank's file, for reading.

        Raises:
            StorageFailed: it cannot be opened or read.
        """
        with _refusals(f"{folder.path / file.name} cannot be read"):
            descriptor = os.open(folder.path / file.name, os.O_RDONLY | os.O_CLOEXEC)
            try:
                yield descriptor
            finally:
                os.close(descriptor)

    def collect(self, keep: int, *, generation: int) -> tuple[Folder, ...]:
        """Remove what retention does not keep and what crashes left; returns what was removed.

        Args:
            keep: how many of the newest whole checkpoints stay; at least one does.
            generation: of the running round: unfinished folders of older ones are leftovers.

        Raises:
            StorageFailed: the storage refused.
        """
        folders = self.folders()
        good = tuple(folder for folder in folders if self._is_good(folder))
        doomed = retention.doomed(folders, good, keep=keep, generation=generation)
        with _refusals(f"{self.root} cannot be tidied"):
            for folder in doomed:
                self._remove(folder)
            for folder in set(good) - set(doomed):
                for leftover in folder.path.glob(f"*{_PART}"):
                    self._files.remove(leftover)
        return doomed

    def _is_good(self, folder: Folder) -> bool:
        if not folder.manifest_path.is_file():
            return False
        try:
            self.load(folder)
        except errors.TornSnapshot:
            return False
        return True

    def _remove(self, folder: Folder) -> None:
        # The manifest first: a half-removed checkpoint must not look like a whole one.
        self._files.remove(folder.manifest_path)
        self._files.sync_folder(folder.path)
        for path in folder.path.iterdir():
            self._files.remove(path)
        self._files.remove_folder(folder.path)

    def _make_folder(self, path: pathlib.Path) -> None:
        if not path.is_dir():
            self._files.make_folder(path)
            self._files.sync_folder(path.parent)

    def _put(self, path: pathlib.Path, pieces: Iterator[memoryview]) -> int:
        part = path.with_name(path.name + _PART)
        descriptor = self._files.create(part)
        written = 0
        try:
            for piece in pieces:
                written = checksum.extend(written, piece)
                rest = piece
                while rest:
                    rest = rest[self._files.write(descriptor, rest) :]
            self._files.sync(descriptor)
        finally:
            self._files.close(descriptor)
        self._files.rename(part, path)
        self._files.sync_folder(path.parent)
        return written


def check(folder: Folder, file: RankFile, found: int) -> None:
    """Compare a checksum with the manifest's.

    Raises:
        TornSnapshot: they differ.
    """
    if found != file.checksum:
        raise errors.TornSnapshot(
            f"{folder.path / file.name} has CRC-32C {found:08x}; the manifest says "
            f"{file.checksum:08x}"
        )


def _pieces(source: int, length: int) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(min(checksum.CHUNK_BYTES, max(length, 1))))
    offset = 0
    while offset < length:
        piece = buffer[: min(len(buffer), length - offset)]
        count = os.preadv(source, [piece], offset)
        if count == 0:
            raise errors.TornSnapshot(f"a slot of {offset} bytes where {length} were sealed")
        yield piece[:count]
        offset += count


@contextlib.contextmanager
def _refusals(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as cause:
        raise errors.StorageFailed(f"{what}: {cause.strerror or cause}") from cause
