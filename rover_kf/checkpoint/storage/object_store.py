# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A Storage in an object store: S3 and what speaks its language, Google Cloud Storage, Azure.

The same names as in a folder. An object appears whole or not at all, so nothing is written aside;
the manifest is put only where there is none, so that of two coordinators one has its way. A rank's
attempt has a name of its own, taken by a conditional put: an upload that is carried out late
replaces nothing that another attempt has written.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Collection, Iterable, Iterator, Mapping

from rover_kf import errors
from rover_kf.api.states import NO_STATE, RoundId, State
from rover_kf.checkpoint.format import checksum, manifest
from rover_kf.checkpoint.format.manifest import CheckpointFolder, Manifest, RankFile
from rover_kf.checkpoint.storage import claim, credentials, storage_protocol, verification
from rover_kf.checkpoint.storage.bucket import Bucket, ObjectInfo, Timeouts
from rover_kf.checkpoint.storage.claim import Claim
from rover_kf.checkpoint.storage.retention import KEEP_NEWEST, RetentionExceptions


class ObjectStorage:
    """The checkpoints of one job; methods as in Storage.

    Args:
        url: ``<checkpoint.path>/<job>``.
        timeouts: with the store.
    """

    def __init__(self, url: str, timeouts: Timeouts | None = None) -> None:
        self.url = self.location = url.rstrip("/")
        self._timeouts = timeouts or Timeouts()
        self._opened: tuple[Mapping[str, str], Bucket] | None = None
        """With the mounted credentials that it was opened with."""
        self._manifests: dict[CheckpointFolder, tuple[str, Manifest]] = {}
        """Manifests that retention has read, each with its object's mark."""

    @property
    def _bucket(self) -> Bucket:
        # At the use: a store that cannot be opened is a refusal like any other, and keys change.
        keys, opened = credentials.read_mounted(self.url, os.environ), self._opened
        if opened is None or opened[0] != keys:
            credentials.strip_whitespace(os.environ)
            opened = self._opened = keys, Bucket(self.url, self._timeouts, keys)
        return opened[1]

    def claim(self, stated: Claim) -> None:
        """Claim the job's folder, or check that the claim still holds."""
        claim.claim(self, stated)

    def last_generation(self) -> int:
        """The greatest generation that has claimed the folder; 0: none has."""
        return claim.last_generation(self)

    def folder(self, state: State) -> CheckpointFolder:
        """Where that checkpoint is, or would be."""
        return CheckpointFolder(state, f"{self.url}/{manifest.folder_name(state)}")

    def write_rank(
        self, folder: CheckpointFolder, rank: int, content: Iterable[memoryview], length: int
    ) -> RankFile:
        """Write a rank's file, safe when it returns."""
        verification.check_unfinished(folder, has_manifest=self._bucket.has(_manifest_key(folder)))
        name, written = self._reserve_name(folder, rank), 0

        def summed() -> Iterator[memoryview]:
            nonlocal written
            for piece in storage_protocol.check_length(content, length):
                written = checksum.extend(written, piece)
                yield piece

        try:
            self._bucket.write_stream(f"{folder.name}/{name}", summed(), length)
        except errors.StorageError:
            # The store may carry the upload out late: the empty object keeps the name from others.
            raise
        except errors.CheckpointError:
            with contextlib.suppress(errors.StorageError):  # the first error counts
                self._bucket.delete([f"{folder.name}/{name}"])
            raise
        return RankFile(rank, name, length, written)

    def write_manifest(self, content: Manifest) -> CheckpointFolder:
        """Make the folder a checkpoint; safe when it returns."""
        folder, encoded = self.folder(content.state), manifest.to_bytes(content)
        verification.check_reported(content, folder, self.sizes(folder))
        if not self._bucket.create(_manifest_key(folder), encoded):
            verification.check_same(self.read_manifest(folder), content, folder)
        return folder

    def ensure_durable(self, folder: CheckpointFolder) -> None:
        """Nothing to do: an object that can be seen is safe."""

    def folders(self) -> tuple[CheckpointFolder, ...]:
        """Every folder that is named like a checkpoint, oldest first."""
        return tuple(sorted(self._list_folders()))

    def complete_folders(self) -> tuple[CheckpointFolder, ...]:
        """Folders that have a manifest, oldest first."""
        tree = self._list_folders()
        return tuple(sorted(folder for folder in tree if manifest.NAME in tree[folder]))

    def sizes(self, folder: CheckpointFolder) -> Mapping[str, int]:
        """Bytes of every file of a folder, by its name there."""
        found = self._bucket.list_objects(folder.name)
        return {key.removeprefix(f"{folder.name}/"): item.size for key, item in found.items()}

    def read_manifest(self, folder: CheckpointFolder) -> Manifest:
        """Read a manifest; its files are not looked at."""
        content = self._bucket.read(_manifest_key(folder), manifest.MAX_BYTES)
        return manifest.from_bytes(content, folder)

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
        return self._bucket.read_range(f"{folder.name}/{file.name}", offset, length)

    def remove(self, folder: CheckpointFolder) -> None:
        """Remove a checkpoint, its manifest first."""
        self._remove(folder, self.sizes(folder))

    def collect(
        self,
        keep: int,
        *,
        current: RoundId,
        spare: RetentionExceptions = KEEP_NEWEST,
        below: State = NO_STATE,
    ) -> tuple[CheckpointFolder, ...]:
        """Remove what retention does not keep and what crashes left; returns what was removed."""
        tree = self._list_folders()
        whole = {folder for folder in tree if manifest.NAME in tree[folder]}
        kept, doomed, unread = verification.filter_valid(
            lambda folder: self._load_cached(folder, tree[folder]),
            tree, whole, keep=keep, current=current, spare=spare, below=below,
        )  # fmt: skip
        self._manifests = {folder: self._manifests[folder] for folder in kept}
        for folder in doomed:
            self._remove(folder, tree[folder])
        leftovers = [
            f"{folder.name}/{name}"
            for folder, content in kept.items()
            for name in verification.orphan_files(content, tree[folder])
        ]
        if leftovers:
            self._bucket.delete(leftovers)
        if unread:
            raise unread[0]
        return doomed

    def _reserve_name(self, folder: CheckpointFolder, rank: int) -> str:
        """Create an empty object under a name that no other writer has.

        A large object cannot be uploaded on the condition that there is none. So the name is taken
        by an empty one first, which the upload replaces.
        """
        # One by one, and not by a listing: of a thousand ranks each would list the files of all.
        marks = itertools.chain([""], map(str, itertools.count(2)))
        names = (manifest.file_name(rank, mark) for mark in marks)
        return next(name for name in names if self._bucket.create(f"{folder.name}/{name}", b""))

    def _remove(self, folder: CheckpointFolder, content: Iterable[str]) -> None:
        self._bucket.delete([_manifest_key(folder)])
        self._bucket.delete(f"{folder.name}/{name}" for name in content)

    def _load_cached(self, folder: CheckpointFolder, content: Mapping[str, ObjectInfo]) -> Manifest:
        """As load, without a request where the manifest is known: all that stay are asked for."""
        mark = content[manifest.NAME].etag
        known = self._manifests.get(folder)
        found = known[1] if known and known[0] == mark else self.read_manifest(folder)
        self._manifests[folder] = mark, found
        verification.check_sizes(folder, found, {name: item.size for name, item in content.items()})
        return found

    def _list_folders(self) -> Mapping[CheckpointFolder, Mapping[str, ObjectInfo]]:
        """What is in each folder, by its name there."""
        found: dict[CheckpointFolder, dict[str, ObjectInfo]] = {}
        for key, item in self._bucket.list_objects().items():
            name, _, rest = key.partition("/")
            folder = manifest.parse_folder(f"{self.url}/{name}")
            if folder is not None and rest:
                found.setdefault(folder, {})[rest] = item
        return found

    # -- small objects ---------------------------------------------------------------------------

    def read_small(self, name: str) -> bytes | None:
        """An object's bytes; None if there is none."""
        return self._bucket.find(name, manifest.MAX_BYTES)

    def create_small(self, name: str, content: bytes) -> bool:
        """Write an object; False if there is one of that name."""
        return self._bucket.create(name, content)

    def replace_small(self, name: str, content: bytes) -> None:
        """Write an object in place of the one that is there."""
        self._bucket.write_stream(name, iter([memoryview(content)]), len(content))

    def list_small(self, folder: str) -> Collection[str]:
        """Names of the objects below a prefix."""
        return tuple(key.removeprefix(f"{folder}/") for key in self._bucket.list_objects(folder))

    def remove_small(self, name: str) -> None:
        """Remove an object; one that is gone is no error."""
        self._bucket.delete([name])


def _manifest_key(folder: CheckpointFolder) -> str:
    return f"{folder.name}/{manifest.NAME}"
