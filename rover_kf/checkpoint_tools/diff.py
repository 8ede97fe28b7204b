# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How two stored states differ, tensor by tensor and value by value; never both in memory whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from rover_kf.checkpoint.format.snapshot import Entry
from rover_kf.checkpoint_tools import tensor_diff
from rover_kf.checkpoint_tools.consolidated_state import WholeState
from rover_kf.checkpoint_tools.plain_values import Value, values
from rover_kf.checkpoint_tools.tensor_diff import Comparison
from rover_kf.checkpoint_tools.tensor_reader import TensorReader, batches

ONLY_A, ONLY_B = "only in A", "only in B"
LAYOUT = "type or shape"
VALUES = "values"


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """One tensor or plain value that is not the same."""

    what: str
    """``tensor`` or ``value``."""
    name: str
    rank: int
    """Whose; 0 for what is the same on every rank."""
    kind: str
    """ONLY_A, ONLY_B, LAYOUT or VALUES."""
    a: str
    """Type and shape, or the value; empty: it is not there."""
    b: str
    comparison: Comparison | None = None
    """Of tensors of one type and shape."""


def differences(a: WholeState, b: WholeState) -> Iterator[Difference]:
    """Compare the whole states, then what further ranks have of their own.

    Ranks that only one of the worlds has are passed over: a state that was saved again by another
    world is the same state.

    Raises:
        TornSnapshot: a file is shorter than it was, or a state cannot be read.
        StorageFailed: a storage cannot be read.
    """
    yield from _of_tensors(a, b, a.content.tensors.keys() | b.content.tensors.keys())
    yield from _of_values(a, b)
    for rank in range(1, min(a.manifest.world_size, b.manifest.world_size)):
        # Whole states of all ranks would be as many times the work of all files.
        left, right = a.own_of(rank), b.own_of(rank)
        if left.own != right.own:
            left, right = a.of_rank(rank), b.of_rank(rank)
        yield from _of_tensors(left, right, left.own | right.own)
        yield from _of_values(left, right)


def layout(entry: Entry) -> str:
    """Type and shape, as people write them."""
    return f"{entry.dtype} [{', '.join(map(str, entry.shape))}]"


def _of_tensors(
    a: WholeState, b: WholeState, names: set[str] | frozenset[str]
) -> Iterator[Difference]:
    left, right = a.content.tensors, b.content.tensors
    common = []
    for name in sorted(names):
        ours, theirs = (held[name].entry if name in held else None for held in (left, right))
        texts = (layout(ours) if ours else "", layout(theirs) if theirs else "")
        if ours and theirs and texts[0] == texts[1]:
            common.append(left[name])
            continue
        kind = LAYOUT if ours and theirs else ONLY_A if ours else ONLY_B
        yield Difference("tensor", name, a.rank, kind, *texts)
    readers = TensorReader(a), TensorReader(b)
    # In the file's order, so that neighbours are read together.
    for batch in batches(sorted(common, key=lambda place: (place.begin, place.end))):
        entries = [place.entry for place in batch]
        for entry, found in zip(entries, _compared(readers, entries), strict=True):
            if found.differing:
                text = layout(entry)
                yield Difference("tensor", entry.name, a.rank, VALUES, text, text, found)


def _compared(
    readers: tuple[TensorReader, TensorReader], entries: Sequence[Entry]
) -> list[Comparison]:
    """Of one batch; its bytes go before those of the next come."""
    chosen = [entry.name for entry in entries]
    left, right = (reader.read(chosen) for reader in readers)
    return [tensor_diff.compare(left[e.name], right[e.name], e.dtype, e.width) for e in entries]


def _of_values(a: WholeState, b: WholeState) -> Iterator[Difference]:
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
        yield Difference("value", there.name, a.rank, kind, said[0], said[1])


def _by_path(state: WholeState) -> Mapping[tuple[str, ...], Value]:
    return {value.path: value for value in values(state.tree())}
