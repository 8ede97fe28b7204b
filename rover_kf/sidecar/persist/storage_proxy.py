# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A folder's checkpoints behind processes of their own, which are given up when it hangs."""

from __future__ import annotations

import mmap
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from rover_kf.checkpoint.format import manifest
from rover_kf.checkpoint.format.chunks import PIECE_BYTES
from rover_kf.checkpoint.format.manifest import Folder, Manifest, RankFile
from rover_kf.checkpoint.storage import verification
from rover_kf.checkpoint.storage.directory import DirectoryStorage
from rover_kf.checkpoint.storage.rank_content import SlotContent
from rover_kf.checkpoint.storage.rate_limit import Cap, Waits
from rover_kf.checkpoint.storage.retention import NOTHING, Spare
from rover_kf.sidecar.persist.worker_pool import Answer, StorageChildren

SMALL_SECONDS, PIECE_SECONDS = 10.0, 20.0
"""How long one listing or manifest, and one piece of a file, is waited for."""
HANGING_SECONDS = 3.0
"""The former once the folder is known to hang: whoever restarts waits for it. Nobody waits for the
writer of a file."""


class SeparateStorage:
    """The checkpoints of one job in a folder; methods as in StoredCheckpoints and SlotWriter.

    Args:
        root: ``<checkpoint.path>/<job>``.
        cap: on what ``write_slot`` writes.
        patience: seconds for a small call and for a piece; shorter in tests.
    """

    def __init__(
        self,
        root: pathlib.Path,
        cap: Cap,
        *,
        patience: tuple[float, float] = (SMALL_SECONDS, PIECE_SECONDS),
    ) -> None:
        self._cap, self._patience = cap, patience
        self._places, self._children = DirectoryStorage(root), StorageChildren(root)

    @property
    def silent_seconds(self) -> float:
        """How long the folder has hung; 0: it answers, as far as is known."""
        return self._children.silent_seconds

    def close(self) -> None:
        """End the processes, and with an error every call that waits for one."""
        self._children.close()

    def folder(self, step: int, generation: int) -> Folder:
        """Where that checkpoint is, or would be."""
        return self._places.folder(step, generation)

    def write_slot(self, folder: Folder, rank: int, content: SlotContent) -> tuple[RankFile, float]:
        """Write a rank's file, safe when it returns."""
        words = {
            "rank": rank,
            "slot": str(content.slot),
            "slot_bytes": content.slot_bytes,
            "ranges": content.ranges,
            **_words("write_rank", folder),
        }
        children, waits = self._children, Waits(self._cap, content.go_on)
        with children.one() as child:
            begun, patience = time.monotonic(), self._patience[1]
            found, _ = children.ask(child, words, content.header, patience, waits.wait)
            seconds = time.monotonic() - begun - waits.seconds
        return RankFile(rank, *found["done"]), max(seconds, 0.0)

    def write_manifest(self, content: Manifest) -> Folder:
        """Make the folder a checkpoint; safe when it returns."""
        folder = self.folder(content.step, content.generation)
        self._call("write_manifest", folder, blob=manifest.to_bytes(content))
        return folder

    def settle(self, folder: Folder) -> None:
        """Make a checkpoint safe that can be seen."""
        self._call("settle", folder)

    def folders(self) -> tuple[Folder, ...]:
        """Every folder that is named like a checkpoint, oldest first."""
        return self._named(self._call("folders")[0])

    def whole(self) -> tuple[Folder, ...]:
        """Folders that have a manifest, oldest first."""
        return self._named(self._call("whole")[0])

    def sizes(self, folder: Folder) -> Mapping[str, int]:
        """Bytes of every file of a folder, by its name there."""
        found: Mapping[str, int] = self._call("sizes", folder)[0]["done"]
        return found

    def read_manifest(self, folder: Folder) -> Manifest:
        """Read a manifest; its files are not looked at."""
        return manifest.from_bytes(self._call("read_manifest", folder)[1], folder)

    def load(self, folder: Folder) -> Manifest:
        """Read a manifest and check that its files are there in their sizes."""
        return verification.load(self, folder)

    def verify(self, folder: Folder) -> Manifest:
        """Read every byte of a checkpoint and compare the checksums."""
        return manifest.from_bytes(self._call("verify", folder, pieces=True)[1], folder)

    def read_range(
        self, folder: Folder, file: RankFile, offset: int, length: int
    ) -> Iterator[memoryview]:
        """A range of a rank's file; each piece is valid until the next is asked for."""
        words = {
            "rank": file.rank,
            "name": file.name,
            "size": file.length,
            "checksum": file.checksum,
            "offset": offset,
            "length": length,
            **_words("read_range", folder),
        }
        children, patience = self._children, self._patience[1]
        with children.one() as child:
            buffer = memoryview(mmap.mmap(child.buffer, PIECE_BYTES))
            found, _ = children.ask(child, words, b"", patience)
            while "piece" in found:
                yield buffer[: found["piece"]]
                found, _ = children.ask(child, {}, b"", patience)

    def remove(self, folder: Folder) -> None:
        """Remove a checkpoint, its manifest first."""
        self._call("remove", folder, pieces=True)

    def collect(
        self, keep: int, *, generation: int, spare: Spare = NOTHING, below: int = 0
    ) -> tuple[Folder, ...]:
        """Remove what retention does not keep and what crashes left; returns what was removed."""
        best = str(spare.best) if spare.best else ""
        words = {"keep": keep, "of": generation, "every": spare.every, "best": best, "below": below}
        return self._named(self._call("collect", words=words, pieces=True)[0])

    def _named(self, found: Mapping[str, Any]) -> tuple[Folder, ...]:
        return tuple(self.folder(step, generation) for step, generation in found["done"])

    def _call(
        self,
        name: str,
        folder: Folder | None = None,
        *,
        words: Mapping[str, Any] | None = None,
        blob: bytes = b"",
        pieces: bool = False,
    ) -> Answer:
        asked = {**(words or {}), **_words(name, folder)}
        patience = self._patience[pieces]
        if self.silent_seconds and not pieces:
            patience = min(patience, HANGING_SECONDS)
        with self._children.one() as child:
            return self._children.ask(child, asked, blob, patience)


def _words(name: str, folder: Folder | None) -> dict[str, Any]:
    if folder is None:
        return {"call": name}
    return {"call": name, "step": folder.step, "generation": folder.generation}
