# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A RankWriter that writes at no more than a rate."""

from __future__ import annotations

from collections.abc import Iterable

from rover_kf.checkpoint.bandwidth import Cap
from rover_kf.checkpoint.manifest import Folder, RankFile
from rover_kf.checkpoint.storage import RankWriter


class CappedWriter:
    """Another RankWriter; methods as there.

    Args:
        writer: that does the work.
        cap: on its bytes.
    """

    def __init__(self, writer: RankWriter, cap: Cap) -> None:
        self._writer, self._cap = writer, cap

    def folder(self, step: int, generation: int) -> Folder:
        """Where that checkpoint is, or would be."""
        return self._writer.folder(step, generation)

    def write_rank(
        self, folder: Folder, rank: int, content: Iterable[memoryview], length: int
    ) -> RankFile:
        """Write a rank's file, safe when it returns."""
        return self._writer.write_rank(folder, rank, self._cap.paced(content), length)
