# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A folder's checkpoints behind processes of their own, which are given up when it hangs."""

from __future__ import annotations

import mmap
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from rover_kf.api import codec
from rover_kf.api.states import NO_STATE, RoundId, State
from rover_kf.checkpoint.format import manifest
from rover_kf.checkpoint.format.chunks import CHUNK_BYTES
from rover_kf.checkpoint.format.manifest import CheckpointFolder, Manifest, RankFile
from rover_kf.checkpoint.storage import verification
from rover_kf.checkpoint.storage.claim import Claim
from rover_kf.checkpoint.storage.directory import DirectoryStorage
from rover_kf.checkpoint.storage.rank_content import SlotContent
from rover_kf.checkpoint.storage.rate_limit import RateLimiter, WaitClock
from rover_kf.checkpoint.storage.retention import KEEP_NEWEST, RetentionExceptions
from rover_kf.sidecar.persist.worker_pool import Answer, StorageWorkerPool

SMALL_SECONDS, CHUNK_SECONDS = 10.0, 20.0
"""How long one listing or manifest, and one piece of a file, is waited for."""
HANGING_SECONDS = 3.0
"""The former once the folder is known to hang: whoever restarts waits for it. Nobody waits for the
writer of a file."""


class StorageProxy:
    """The checkpoints of one job in a folder; methods as in StoredCheckpoints and SlotFileWriter.

    Args:
        root: ``<checkpoint.path>/<job>``.
        limiter: on what ``write_slot`` writes.
        timeouts: seconds for a small call and for a piece; shorter in tests.
    """

    def __init__(
        self,
        root: pathlib.Path,
        limiter: RateLimiter,
        *,
        timeouts: tuple[float, float] = (SMALL_SECONDS, CHUNK_SECONDS),
    ) -> None:
        self._limiter, self._timeouts = limiter, timeouts
        self._directory, self._workers = DirectoryStorage(root), StorageWorkerPool(root)

    @property
    def silent_seconds(self) -> float:
        """How long the folder has hung; 0: it answers, as far as is known."""
        return self._workers.silent_seconds

    def close(self) -> None:
        """End the processes, and with an error every call that waits for one."""
        self._workers.close()

    def folder(self, state: State) -> CheckpointFolder:
        """Where that checkpoint is, or would be."""
        return self._directory.folder(state)

    def claim(self, stated: Claim) -> None:
        """Claim the job's folder, or check that the claim still holds."""
        self._call("claim", words={"claim": codec.encode(stated)})

    def last_generation(self) -> int:
        """The greatest generation that has claimed the folder; 0: none has."""
        return int(self._call("last_generation")[0]["done"])

    def write_slot(
        self, folder: CheckpointFolder, rank: int, content: SlotContent
    ) -> tuple[RankFile, float]:
        """Write a rank's file, safe when it returns."""
        words = {
            "rank": rank,
            "slot": str(content.slot),
            "slot_bytes": content.slot_bytes,
            "ranges": content.ranges,
            **_request("write_rank", folder),
        }
        children, waits = self._workers, WaitClock(self._limiter, content.check_cancelled)
        with children.acquire() as child:
            begun, patience = time.monotonic(), self._timeouts[1]
            found, _ = children.request(child, words, content.header, patience, waits.wait)
            seconds = time.monotonic() - begun - waits.seconds
        return RankFile(rank, *found["done"]), max(seconds, 0.0)

    def write_manifest(self, content: Manifest) -> CheckpointFolder:
        """Make the folder a checkpoint; safe when it returns."""
        folder = self.folder(content.state)
        self._call("write_manifest", folder, blob=manifest.to_bytes(content))
        return folder

    def ensure_durable(self, folder: CheckpointFolder) -> None:
        """Make a checkpoint safe that can be seen."""
        self._call("settle", folder)

    def folders(self) -> tuple[CheckpointFolder, ...]:
        """Every folder that is named like a checkpoint, oldest first."""
        return self._to_folders(self._call("folders")[0])

    def complete_folders(self) -> tuple[CheckpointFolder, ...]:
        """Folders that have a manifest, oldest first."""
        return self._to_folders(self._call("whole")[0])

    def sizes(self, folder: CheckpointFolder) -> Mapping[str, int]:
        """Bytes of every file of a folder, by its name there."""
        found: Mapping[str, int] = self._call("sizes", folder)[0]["done"]
        return found

    def read_manifest(self, folder: CheckpointFolder) -> Manifest:
        """Read a manifest; its files are not looked at."""
        return manifest.from_bytes(self._call("read_manifest", folder)[1], folder)

    def load(self, folder: CheckpointFolder) -> Manifest:
        """Read a manifest and check that its files are there in their sizes."""
        return verification.load(self, folder)

    def verify(self, folder: CheckpointFolder) -> Manifest:
        """Read every byte of a checkpoint and compare the checksums."""
        return manifest.from_bytes(self._call("verify", folder, chunked=True)[1], folder)

    def read_range(
        self, folder: CheckpointFolder, file: RankFile, offset: int, length: int
    ) -> Iterator[memoryview]:
        """A range of a rank's file; each piece is valid until the next is asked for."""
        words = {
            "rank": file.rank,
            "name": file.name,
            "size": file.length,
            "checksum": file.checksum,
            "offset": offset,
            "length": length,
            **_request("read_range", folder),
        }
        children, patience = self._workers, self._timeouts[1]
        with children.acquire() as child:
            buffer = memoryview(mmap.mmap(child.buffer, CHUNK_BYTES))
            found, _ = children.request(child, words, b"", patience)
            while "piece" in found:
                yield buffer[: found["piece"]]
                found, _ = children.request(child, {}, b"", patience)

    def remove(self, folder: CheckpointFolder) -> None:
        """Remove a checkpoint, its manifest first."""
        self._call("remove", folder, chunked=True)

    def collect(
        self,
        keep: int,
        *,
        current: RoundId,
        spare: RetentionExceptions = KEEP_NEWEST,
        below: State = NO_STATE,
    ) -> tuple[CheckpointFolder, ...]:
        """Remove what retention does not keep and what crashes left; returns what was removed."""
        best = str(spare.best) if spare.best else ""
        words = {
            "keep": keep,
            "of": codec.encode(current),
            "every": spare.every,
            "best": best,
            "below": codec.encode(below),
        }
        return self._to_folders(self._call("collect", words=words, chunked=True)[0])

    def _to_folders(self, answer: Mapping[str, Any]) -> tuple[CheckpointFolder, ...]:
        return tuple(self.folder(codec.decode(State, found)) for found in answer["done"])

    def _call(
        self,
        name: str,
        folder: CheckpointFolder | None = None,
        *,
        words: Mapping[str, Any] | None = None,
        blob: bytes = b"",
        chunked: bool = False,
    ) -> Answer:
        asked = {**(words or {}), **_request(name, folder)}
        patience = self._timeouts[chunked]
        if self.silent_seconds and not chunked:
            patience = min(patience, HANGING_SECONDS)
        with self._workers.acquire() as child:
            return self._workers.request(child, asked, blob, patience)


def _request(name: str, folder: CheckpointFolder | None) -> dict[str, Any]:
    if folder is None:
        return {"call": name}
    return {"call": name, "state": codec.encode(folder.state)}
