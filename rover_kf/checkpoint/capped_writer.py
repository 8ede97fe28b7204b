# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Slots to a storage, in this process, at no more than a rate."""

from __future__ import annotations

import time

from rover_kf.checkpoint.bandwidth import Cap, Waits
from rover_kf.checkpoint.manifest import Folder, RankFile
from rover_kf.checkpoint.slot_content import SlotContent
from rover_kf.checkpoint.storage import RankWriter


class CappedWriter:
    """A SlotWriter; methods as there.

    Args:
        writer: that does the work.
        cap: on its bytes.
    """

    def __init__(self, writer: RankWriter, cap: Cap) -> None:
        self._writer, self._cap = writer, cap

    def folder(self, step: int, generation: int) -> Folder:
        """Where that checkpoint is, or would be."""
        return self._writer.folder(step, generation)

    def write_slot(self, folder: Folder, rank: int, content: SlotContent) -> tuple[RankFile, float]:
        """Write a rank's file, safe when it returns."""
        begun, waits = time.monotonic(), Waits(self._cap, content.go_on)
        paced = waits.paced(content.pieces())
        file = self._writer.write_rank(folder, rank, paced, content.length)
        return file, max(time.monotonic() - begun - waits.seconds, 0.0)
