# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How two stored states differ, tensor by tensor and value by value; never both in memory whole.

Each tensor is put together from the files that hold parts of it. Elements are compared without
torch.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rover_kf.checkpoint.format.snapshot import Entry, PlacedTensor
from rover_kf.checkpoint.resharding.copy_runs import CopyRun, scatter
from rover_kf.checkpoint_tools.consolidated_state import ConsolidatedState, PlainValue, iter_values
from rover_kf.checkpoint_tools.inspection import report_removal

Bits = np.ndarray[Any, np.dtype[Any]]

_BLOCK = 1 << 20
"""Elements that are looked at together."""


@dataclasses.dataclass(frozen=True, slots=True)
class TensorComparison:
    """How two tensors of one type and shape differ."""

    elements: int
    differing: int
    """Elements that are not equal bit by bit."""
    max_difference: float | None
    """Largest absolute difference; None: no difference is a finite number, or the type is not
    known."""
    not_finite: int
    """Differing elements of which one is infinite or not a number."""


def _float8_e4m3fn(bits: Bits) -> Bits:
    exponent, mantissa = (bits >> 3) & 15, (bits & 7).astype(np.float64)
    normal = np.ldexp(1 + mantissa / 8, exponent.astype(np.int32) - 7)
    found = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), normal)
    found = np.where(bits & 127 == 127, np.nan, found)  # noqa: PLR2004 - all ones
    return np.where(bits >> 7 == 1, -found, found)


_NUMBERS: Mapping[str, Callable[[Bits], Bits]] = {
    "BOOL": lambda bits: bits,
    "U8": lambda bits: bits,
    "U16": lambda bits: bits,
    "U32": lambda bits: bits,
    "U64": lambda bits: bits,
    "I8": lambda bits: bits.view(np.int8),
    "I16": lambda bits: bits.view(np.int16),
    "I32": lambda bits: bits.view(np.int32),
    "I64": lambda bits: bits.view(np.int64),
    "F16": lambda bits: bits.view(np.float16),
    "F32": lambda bits: bits.view(np.float32),
    "F64": lambda bits: bits.view(np.float64),
    "BF16": lambda bits: (bits.astype(np.uint32) << 16).view(np.float32),
    "F8_E5M2": lambda bits: (bits.astype(np.uint16) << 8).view(np.float16),
    "F8_E4M3": _float8_e4m3fn,
    "C64": lambda bits: bits.view(np.complex64),
    "complex128": lambda rows: rows.view(np.complex128).reshape(-1),
}
_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def compare(a: memoryview, b: memoryview, dtype: str, width: int) -> TensorComparison:
    """Compare the bytes of two tensors.

    Args:
        a: one's, row by row.
        b: the other's, as many.
        dtype: of both, as a snapshot names it; of a type without a known meaning only bits count.
        width: bytes an element.
    """
    step = _BLOCK * width
    elements, differing, not_finite = len(a) // width, 0, 0
    largest: float | None = None
    for begin in range(0, len(a), step):
        left, right = _differing(a[begin : begin + step], b[begin : begin + step], width)
        differing += len(left)
        numbers = _NUMBERS.get(dtype)
        if not len(left) or numbers is None:
            continue
        distance = _distance(numbers(left), numbers(right))
        finite = distance[np.isfinite(distance)]
        not_finite += len(distance) - len(finite)
        if len(finite):
            largest = max(largest or 0.0, float(finite.max()))
    return TensorComparison(elements, differing, largest, not_finite)


def _differing(a: memoryview, b: memoryview, width: int) -> tuple[Bits, Bits]:
    """The elements that differ, as bits; of other widths as rows of bytes."""
    if width in _BITS:
        left, right = (np.frombuffer(data, _BITS[width]) for data in (a, b))
        there = left != right
    else:
        left, right = (np.frombuffer(data, np.uint8).reshape(-1, width) for data in (a, b))
        there = (left != right).any(axis=1)
    return left[there], right[there]


def _distance(a: Bits, b: Bits) -> Bits:
    distance: Bits
    if a.dtype.kind in "iu":
        # Exact, where a difference of the type itself could overflow.
        high, low = np.maximum(a, b), np.minimum(a, b)
        unsigned = np.dtype(f"u{a.dtype.itemsize}")
        distance = (high.view(unsigned) - low.view(unsigned)).astype(np.float64)
        return distance
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(a.astype(wide) - b.astype(wide))
    return distance


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


ONLY_A, ONLY_B = "only in A", "only in B"
LAYOUT = "type or shape"
VALUES = "values"


@dataclasses.dataclass(frozen=True, slots=True)
class StateDifference:
    """One tensor or plain value that is not the same."""

    element: str
    """``tensor`` or ``value``."""
    name: str
    rank: int
    """Whose; 0 for what is the same on every rank."""
    kind: str
    """ONLY_A, ONLY_B, LAYOUT or VALUES."""
    a: str
    """Type and shape, or the value; empty: it is not there."""
    b: str
    comparison: TensorComparison | None = None
    """Of tensors of one type and shape."""


def diff_states(a: ConsolidatedState, b: ConsolidatedState) -> Iterator[StateDifference]:
    """Compare the whole states, then what further ranks have of their own.

    Ranks that only one of the worlds has are passed over: a state that was saved again by another
    world is the same state.

    Raises:
        CorruptSnapshot: a file is shorter than it was, or a state cannot be read.
        StorageError: a storage cannot be read.
    """
    yield from _diff_tensors(a, b, a.content.tensors.keys() | b.content.tensors.keys())
    yield from _diff_values(a, b)
    for rank in range(1, min(a.manifest.world_size, b.manifest.world_size)):
        # Whole states of all ranks would be as many times the work of all files.
        left, right = a.rank_local_of(rank), b.rank_local_of(rank)
        if left.rank_local != right.rank_local:
            left, right = a.for_rank(rank), b.for_rank(rank)
        yield from _diff_tensors(left, right, left.rank_local | right.rank_local)
        yield from _diff_values(left, right)


def format_layout(entry: Entry) -> str:
    """Type and shape, as people write them."""
    return f"{entry.dtype} [{', '.join(map(str, entry.shape))}]"


def _diff_tensors(
    a: ConsolidatedState, b: ConsolidatedState, names: set[str] | frozenset[str]
) -> Iterator[StateDifference]:
    left, right = a.content.tensors, b.content.tensors
    common = []
    for name in sorted(names):
        ours, theirs = (held[name].entry if name in held else None for held in (left, right))
        texts = (format_layout(ours) if ours else "", format_layout(theirs) if theirs else "")
        if ours and theirs and texts[0] == texts[1]:
            common.append(left[name])
            continue
        kind = LAYOUT if ours and theirs else ONLY_A if ours else ONLY_B
        yield StateDifference("tensor", name, a.rank, kind, *texts)
    readers = TensorReader(a), TensorReader(b)
    # In the file's order, so that neighbours are read together.
    for batch in batch_tensors(sorted(common, key=lambda tensor: (tensor.begin, tensor.end))):
        entries = [place.entry for place in batch]
        for entry, found in zip(entries, _compare_batch(readers, entries), strict=True):
            if found.differing:
                text = format_layout(entry)
                yield StateDifference("tensor", entry.name, a.rank, VALUES, text, text, found)


def _compare_batch(
    readers: tuple[TensorReader, TensorReader], entries: Sequence[Entry]
) -> list[TensorComparison]:
    """Of one batch; its bytes go before those of the next come."""
    chosen = [entry.name for entry in entries]
    left, right = (reader.read(chosen) for reader in readers)
    return [compare(left[e.name], right[e.name], e.dtype, e.width) for e in entries]


def _diff_values(a: ConsolidatedState, b: ConsolidatedState) -> Iterator[StateDifference]:
    left, right = _by_path(a), _by_path(b)
    for path in sorted(left.keys() | right.keys()):
        ours, theirs = left.get(path), right.get(path)
        if ours is None or theirs is None:
            there = ours or theirs
            kind = ONLY_A if ours else ONLY_B
        elif ours.text != theirs.text:
            there, kind = ours, VALUES
        else:
            continue
        assert there is not None  # noqa: S101 - the path is one's of the two
        said = [repr(value.content) if value else "" for value in (ours, theirs)]
        yield StateDifference("value", there.name, a.rank, kind, said[0], said[1])


def _by_path(state: ConsolidatedState) -> Mapping[tuple[str, ...], PlainValue]:
    return {value.path: value for value in iter_values(state.tree())}
