# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A Storage in a folder that outlives the pods (a PersistentVolume, a host's folder).

Each file is written aside, synced, linked to a name that never existed, its folder synced. Links
below the job's folder are not followed: who trains may write there, and the sidecar reads more than
it may.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
from collections.abc import Collection, Iterable, Iterator, Mapping

from rover_kf import errors
from rover_kf.api.states import NO_STATE, RoundId, State
from rover_kf.checkpoint.format import chunks, manifest
from rover_kf.checkpoint.format.manifest import CheckpointFolder, Manifest, RankFile
from rover_kf.checkpoint.storage import claim, storage_protocol, verification
from rover_kf.checkpoint.storage.claim import Claim
from rover_kf.checkpoint.storage.publication import PART, LinksUnsupported, Publisher, token
from rover_kf.checkpoint.storage.retention import KEEP_NEWEST, RetentionExceptions
from rover_kf.checkpoint.storage.syscalls import Syscalls

_FULL = "free some room, enlarge the volume, or let fewer stay (checkpoint.keep)"


_DENIED = "user {user} may not: change the folder's owner or mode, or the pod's fsGroup"


def explain_os_error(cause: OSError) -> str:
    """In words, with what to do where that is known."""
    said = cause.strerror or str(cause)
    if cause.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{said}; {_FULL}"
    if cause.errno in (errno.EACCES, errno.EPERM):
        return f"{said}; {_DENIED.format(user=os.geteuid())}"
    if cause.errno == errno.EROFS:
        return f"{said}; mount the volume so that it may be written"
    return said


class DirectoryStorage:
    """The checkpoints of one job; methods as in Storage.

    Args:
        root: ``<checkpoint.path>/<job>``; made when first written to.
        files: how the file system is changed.
    """

    def __init__(self, root: pathlib.Path, files: Syscalls | None = None) -> None:
        self.root, self.location = root, str(root)
        self._files = files or Syscalls()
        self._publisher = Publisher(self._files)

    def claim(self, stated: Claim) -> None:
        """Claim the job's folder, or check that the claim still holds."""
        claim.claim(self, stated)

    def last_generation(self) -> int:
        """The greatest generation that has claimed the folder; 0: none has."""
        return claim.last_generation(self)

    def folder(self, state: State) -> CheckpointFolder:
        """Where that checkpoint is, or would be."""
        return CheckpointFolder(state, str(self.root / manifest.folder_name(state)))

    def write_rank(
        self, folder: CheckpointFolder, rank: int, content: Iterable[memoryview], length: int
    ) -> RankFile:
        """Write a rank's file, safe when it returns."""
        path = self.root / folder.name / manifest.file_name(rank)
        pieces = storage_protocol.check_length(content, length)
        with _storage_errors(f"{path} cannot be written"):
            verification.check_unfinished(folder, has_manifest=self._has_manifest(folder))
            self._make_folder(path.parent)
            self._publisher.remove_abandoned(path.parent, f"{path.name}.")
            with self._publisher.staged(path, pieces) as (part, written):
                path = self._publish_rank(part, path.parent, RankFile(rank, "", length, written))
        return RankFile(rank, path.name, length, written)

    def _publish_rank(
        self, part: pathlib.Path, folder: pathlib.Path, file: RankFile
    ) -> pathlib.Path:
        """Publish a rank's file under the first name that is free."""
        same = folder / manifest.file_name(file.rank, f"{file.checksum:08x}")
        other = folder / manifest.file_name(file.rank, token())
        try:
            for path in (folder / manifest.file_name(file.rank), same, other):
                if self._publisher.link(part, path):
                    return path
                if path == same and self._files.size(same) == file.length:
                    # Of the same bytes the same name: attempts that are repeated fill no disk.
                    self._files.remove(part)
                    self._files.sync_folder(folder)
                    return same
        except LinksUnsupported:
            self._publisher.rename(part, other)  # no other attempt has that name
            return other
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(other))

    def write_manifest(self, content: Manifest) -> CheckpointFolder:
        """Make the folder a checkpoint; safe when it returns."""
        folder, encoded = self.folder(content.state), manifest.to_bytes(content)
        verification.check_reported(content, folder, self.sizes(folder))
        if not self._create(self._manifest_path(folder), encoded):
            verification.check_same(self.read_manifest(folder), content, folder)
            self.ensure_durable(folder)
        return folder

    def ensure_durable(self, folder: CheckpointFolder) -> None:
        """Sync the names by which a checkpoint is found."""
        with _storage_errors(f"{folder.location} cannot be synced"):
            for path in (self.root / folder.name, self.root, self.root.parent):
                self._files.sync_folder(path)

    def folders(self) -> tuple[CheckpointFolder, ...]:
        """Every folder that is named like a checkpoint, oldest first."""
        with _storage_errors(f"{self.root} cannot be listed"):
            try:
                with os.scandir(self.root) as listed:
                    paths = [item.path for item in listed if item.is_dir(follow_symlinks=False)]
            except FileNotFoundError:
                return ()
            found = (manifest.parse_folder(path) for path in paths)
            return tuple(sorted(folder for folder in found if folder is not None))

    def complete_folders(self) -> tuple[CheckpointFolder, ...]:
        """Folders that have a manifest, oldest first."""
        return tuple(filter(self._has_manifest, self.folders()))

    def sizes(self, folder: CheckpointFolder) -> Mapping[str, int]:
        """Bytes of every file of a folder, by its name there."""
        path = self.root / folder.name
        with _storage_errors(f"{path} cannot be listed"):
            try:
                found = {item.name: self._files.size(item) for item in path.iterdir()}
            except (FileNotFoundError, NotADirectoryError):
                return {}
        return {name: size for name, size in found.items() if size is not None}

    def read_manifest(self, folder: CheckpointFolder) -> Manifest:
        """Read a manifest; its files are not looked at."""
        with _storage_errors(f"{folder.manifest_location} cannot be read"):
            return manifest.from_bytes(_read_bounded(self._manifest_path(folder)), folder)

    def load(self, folder: CheckpointFolder) -> Manifest:
        """Read a manifest and check that its files are there in their sizes."""
        return verification.load(self, folder)

    def verify(self, folder: CheckpointFolder) -> Manifest:
        """Read every byte of a checkpoint and compare the checksums."""
        return verification.verify(self, folder)

    def read_range(
        self, folder: CheckpointFolder, file: RankFile, offset: int, length: int
    ) -> Iterator[memoryview]:
        """A range of a rank's file; each piece is valid until the next is asked for."""
        path = self._path(folder, file)
        with _storage_errors(f"{path} cannot be read"):
            descriptor = _open_file(path)
            try:
                yield from chunks.read(descriptor, offset, length)
            finally:
                os.close(descriptor)

    def remove(self, folder: CheckpointFolder) -> None:
        """Remove a checkpoint, its manifest first."""
        path = self.root / folder.name
        # Who else removes it may have come first.
        with _storage_errors(f"{path} cannot be removed"), contextlib.suppress(FileNotFoundError):
            self._files.remove(self._manifest_path(folder))
            self._files.sync_folder(path)
            with os.scandir(path) as listed:
                items = [(item.path, item.is_dir(follow_symlinks=False)) for item in listed]
            for item, is_folder in items:
                remove = self._files.remove_tree if is_folder else self._files.remove
                remove(pathlib.Path(item))
            self._files.remove_folder(path)

    def collect(
        self,
        keep: int,
        *,
        current: RoundId,
        spare: RetentionExceptions = KEEP_NEWEST,
        below: State = NO_STATE,
    ) -> tuple[CheckpointFolder, ...]:
        """Remove what retention does not keep and what crashes left; returns what was removed."""
        folders, whole, refused = self._scan()
        kept, doomed, unread = verification.filter_valid(
            self.load, folders, whole, keep=keep, current=current, spare=spare, below=below
        )
        removals = map(self._try_remove, doomed)
        refused += [*unread, *(error for error in removals if error is not None)]
        with _storage_errors(f"{self.root} cannot be tidied"):
            for place in (self.root, self.root / claim.GENERATIONS):
                self._publisher.remove_abandoned(place, "")
            for folder, content in kept.items():
                path = self.root / folder.name
                there = {found.name for found in path.iterdir()}
                parts = {name for name in there if name.endswith(PART)}
                for leftover in sorted(parts | verification.orphan_files(content, there)):
                    self._files.remove(path / leftover)
        if refused:
            raise refused[0]
        return doomed

    def _scan(
        self,
    ) -> tuple[list[CheckpointFolder], set[CheckpointFolder], list[errors.StorageError]]:
        """Folders, those with a manifest, and why others, which stay, cannot be looked at."""
        folders, whole, refused = [], set(), []
        for folder in self.folders():
            try:
                if self._has_manifest(folder):
                    whole.add(folder)
            except errors.StorageError as error:  # noqa: PERF203 - it asks the file system
                refused.append(error)
            else:
                folders.append(folder)
        return folders, whole, refused

    def _try_remove(self, folder: CheckpointFolder) -> errors.StorageError | None:
        """Remove a checkpoint; one that cannot be removed must not keep the others."""
        try:
            self.remove(folder)
        except errors.StorageError as error:
            return error
        return None

    def _path(self, folder: CheckpointFolder, file: RankFile) -> pathlib.Path:
        return self.root / folder.name / file.name

    def _manifest_path(self, folder: CheckpointFolder) -> pathlib.Path:
        return self.root / folder.name / manifest.NAME

    def _has_manifest(self, folder: CheckpointFolder) -> bool:
        with _storage_errors(f"{folder.location} cannot be looked at"):
            return self._files.size(self._manifest_path(folder)) is not None

    def _make_folder(self, path: pathlib.Path) -> None:
        # Synced also where it is there: whoever made it may have died before its name was safe.
        new = {folder.parent for folder in path.parents if not folder.is_dir()}
        self._files.make_folder(path)
        for folder in sorted(new | {self.root, self.root.parent}):
            self._files.sync_folder(folder)

    # -- small files, whole or not there ---------------------------------------------------------

    def read_small(self, name: str) -> bytes | None:
        """A file's bytes; None if there is none."""
        path = self.root / name
        with _storage_errors(f"{path} cannot be read"):
            return _read_bounded(path) if self._files.size(path) is not None else None

    def create_small(self, name: str, content: bytes) -> bool:
        """Write a file, safe when it returns; False if there is one of that name."""
        path = self.root / name
        with _storage_errors(f"{path.parent} cannot be made"):
            self._make_folder(path.parent)
        return self._create(path, content)

    def replace_small(self, name: str, content: bytes) -> None:
        """Write a file in place of the one that is there, safe when it returns."""
        path = self.root / name
        with (
            _storage_errors(f"{path} cannot be written"),
            self._publisher.staged(path, [memoryview(content)]) as (part, _),
        ):
            self._publisher.rename(part, path)

    def list_small(self, folder: str) -> Collection[str]:
        """Names of the files of a folder; none if there is no such folder."""
        path = self.root / folder
        with _storage_errors(f"{path} cannot be listed"):
            try:
                return tuple(item.name for item in path.iterdir())
            except (FileNotFoundError, NotADirectoryError):
                return ()

    def remove_small(self, name: str) -> None:
        """Remove a file; one that is gone is no error."""
        path = self.root / name
        with _storage_errors(f"{path} cannot be removed"):
            self._files.remove(path)

    def _create(self, path: pathlib.Path, content: bytes) -> bool:
        """Write a file unless one of that name is there; it is never replaced."""
        with _storage_errors(f"{path} cannot be written"):
            if self._files.size(path) is not None:
                return False
            with self._publisher.staged(path, [memoryview(content)]) as (part, _):
                try:
                    created = self._publisher.link(part, path)
                except LinksUnsupported:
                    created = self._create_in_place(path, content)
                    self._files.sync_folder(path.parent)
                self._files.remove(part)
                return created

    def _create_in_place(self, path: pathlib.Path, content: bytes) -> bool:
        """As _create where names cannot be linked. A crash may leave half of it under its name.

        A manifest has a checksum: half of one is damage, which is never restored nor replaced.
        """
        try:
            descriptor = self._files.create(path)
        except FileExistsError:
            return False
        try:
            left = memoryview(content)
            while left:
                left = left[self._files.write(descriptor, left) :]
            self._files.sync(descriptor)
        finally:
            self._files.close(descriptor)
        return True


def _open_file(path: pathlib.Path) -> int:
    # A pipe in a file's place must not be waited for.
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)


def _read_bounded(path: pathlib.Path) -> bytes:
    with open(_open_file(path), "rb") as file:
        found = file.read(manifest.MAX_BYTES + 1)
    if len(found) > manifest.MAX_BYTES:
        raise errors.CorruptSnapshot(
            f"{path} is no manifest: it has more than {manifest.MAX_BYTES}"
        )
    return found


@contextlib.contextmanager
def _storage_errors(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as cause:
        raise errors.StorageError(f"{what}: {explain_os_error(cause)}") from cause
