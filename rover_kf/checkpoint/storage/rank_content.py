# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A rank's file before it is written: parts of a slot behind a header.

It names the slot in place of holding its bytes, so that another process can write them.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Protocol

from rover_kf.api.states import State
from rover_kf.checkpoint.format import chunks
from rover_kf.checkpoint.format.manifest import CheckpointFolder, RankFile
from rover_kf.system import shared_volume


@dataclasses.dataclass(frozen=True, slots=True)
class SlotContent:
    """Bytes in order: the header, then the ranges. Whoever reads them keeps the slot pinned."""

    slot: pathlib.Path
    slot_bytes: int
    """That are sealed."""
    ranges: tuple[tuple[int, int], ...]
    """Of the slot: first byte, and the one behind the last."""
    header: bytes = b""
    check_cancelled: Callable[[], None] = lambda: None
    """Called again and again; raises where nobody wants the file any more."""

    @property
    def length(self) -> int:
        """Bytes."""
        return len(self.header) + sum(end - begin for begin, end in self.ranges)

    def chunks(self) -> Iterator[memoryview]:
        """The bytes, a piece at a time, from where they are.

        Raises:
            CorruptSnapshot: the slot is shorter than what was sealed.
            OSError: there is no such slot any more.
        """
        descriptor = shared_volume.open_file(self.slot, os.O_RDONLY)
        try:
            slot = chunks.map_readonly(descriptor, self.slot_bytes)
        finally:
            os.close(descriptor)
        first = (memoryview(self.header),) if self.header else ()
        return itertools.chain(
            first, *(chunks.split(slot[begin:end]) for begin, end in self.ranges)
        )


class SlotFileWriter(Protocol):
    """Where ranks' files are written from slots."""

    def folder(self, state: State) -> CheckpointFolder:
        """Where that checkpoint is, or would be."""

    def write_slot(
        self, folder: CheckpointFolder, rank: int, content: SlotContent
    ) -> tuple[RankFile, float]:
        """Write a rank's file, safe when it returns. Blocks.

        Returns:
            The file with the CRC-32C of the bytes that were written, and the seconds that the
            storage took: waits for a cap on the bandwidth are not counted.

        Raises:
            CheckpointExists: the folder has a manifest.
            StorageError: the storage refused, or does not answer.
            CorruptSnapshot: the slot has other bytes than were sealed.
        """
