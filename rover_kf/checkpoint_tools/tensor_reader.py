# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Some tensors of a state at a time, each put together from the files that hold parts of it."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rover_kf.checkpoint.format.snapshot import PlacedTensor
from rover_kf.checkpoint.resharding.copy_runs import CopyRun, scatter
from rover_kf.checkpoint_tools.consolidated_state import ConsolidatedState
from rover_kf.checkpoint_tools.listing import report_removal

BATCH_BYTES = 32 << 20
"""Of small tensors that are read together."""
_GAP_BYTES = 64 << 10
"""What is read for nothing rather than asked for apart."""


def batch_tensors(
    tensors: Iterable[PlacedTensor], max_bytes: int = BATCH_BYTES
) -> Iterator[tuple[PlacedTensor, ...]]:
    """Tensors to be read together: so many bytes at most, or one tensor that has more."""
    batch: list[PlacedTensor] = []
    size = 0
    for place in tensors:
        if batch and size + place.entry.nbytes > max_bytes:
            yield tuple(batch)
            batch, size = [], 0
        batch.append(place)
        size += place.entry.nbytes
    if batch:
        yield tuple(batch)


class TensorReader:
    """Reads tensors of one state; checksums are of whole files, so what is read is not verified.

    Args:
        state: to read.
    """

    def __init__(self, state: ConsolidatedState) -> None:
        self._state = state
        places = sorted(state.content.tensors.values(), key=lambda tensor: tensor.end)
        ends = [place.end for place in places]
        self._copies: dict[str, list[tuple[int, CopyRun]]] = {}
        for source, copies in enumerate(state.assembly.copies):
            for copy in copies:
                # The one tensor that a copy goes into is the first that ends behind its begin.
                name = places[bisect.bisect_right(ends, copy.target)].entry.name
                self._copies.setdefault(name, []).append((source, copy))

    def read(self, names: Sequence[str]) -> Mapping[str, memoryview]:
        """Bytes of tensors, row by row; all of them are in memory at once.

        Raises:
            CorruptSnapshot: a file is shorter than it was.
            StorageError: the storage cannot be read.
        """
        tensors = self._state.content.tensors
        sizes = [tensors[name].entry.nbytes for name in names]
        begins = list(itertools.accumulate(sizes, initial=0))
        target = memoryview(bytearray(begins[-1]))
        moved: dict[int, list[CopyRun]] = {}
        for name, begin in zip(names, begins, strict=False):
            shift = begin - tensors[name].begin
            for source, copy in self._copies.get(name, ()):
                shifted = dataclasses.replace(copy, target=copy.target + shift)
                moved.setdefault(source, []).append(shifted)
        for source, copies in moved.items():
            for together in _ranges(copies):
                self._move(source, together, target)
        return {name: target[b:e] for name, b, e in zip(names, begins, begins[1:], strict=False)}

    def _move(self, source: int, copies: Sequence[CopyRun], target: memoryview) -> None:
        state, at = self._state, copies[0].begin
        length = max(copy.end for copy in copies) - at
        with report_removal(state.storage, state.folder):
            for piece in state.storage.read_range(state.folder, state.files[source], at, length):
                scatter(piece, at, copies, target)
                at += len(piece)


def _ranges(copies: Iterable[CopyRun]) -> Iterator[Sequence[CopyRun]]:
    """Copies whose bytes lie together in their source."""
    together: list[CopyRun] = []
    end = 0
    for copy in sorted(copies, key=lambda copy: copy.begin):
        if together and copy.begin > end + _GAP_BYTES:
            yield together
            together = []
        together.append(copy)
        end = max(end, copy.end)
    if together:
        yield together
