# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How two stored states differ, tensor by tensor and value by value; never both in memory whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from rover_kf.checkpoint.format.snapshot import Entry
from rover_kf.checkpoint_tools import tensor_diff
from rover_kf.checkpoint_tools.consolidated_state import ConsolidatedState
from rover_kf.checkpoint_tools.plain_values import PlainValue, iter_values
from rover_kf.checkpoint_tools.tensor_diff import TensorComparison
from rover_kf.checkpoint_tools.tensor_reader import TensorReader, batch_tensors

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
    return [tensor_diff.compare(left[e.name], right[e.name], e.dtype, e.width) for e in entries]


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
