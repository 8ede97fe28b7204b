# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A rank's snapshot put together from others': after a change of size, or from files of many ranks.

Pure: plans which bytes of which source go where; the sidecar's restorer moves them. Tensors that
are the same everywhere come whole, whichever ranks wrote their parts; a piece comes as the box that
the rank's training process asked for.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from rover_kf import errors
from rover_kf.api.checkpoints import Wanted
from rover_kf.checkpoint import snapshot
from rover_kf.checkpoint.kinds import KEY, Box, Kinds, Piece, kinds_of
from rover_kf.checkpoint.snapshot import Entry, Placed, Snapshot
from rover_kf.checkpoint.split import common_of


@dataclasses.dataclass(frozen=True, slots=True)
class Copy:
    """Equal runs of bytes of one source, at equal distances there and here."""

    begin: int
    """Of the first run in the source."""
    step: int
    """From run to run in the source."""
    target: int
    """Where the first run goes."""
    target_step: int
    run: int
    """Bytes of a run."""
    count: int

    @classmethod
    def whole(cls, length: int) -> Copy:
        """A source as it is."""
        return cls(begin=0, step=length, target=0, target_step=length, run=length, count=1)

    @property
    def end(self) -> int:
        """Of the last run in the source."""
        return self.begin + (self.count - 1) * self.step + self.run


@dataclasses.dataclass(frozen=True, slots=True)
class Assembly:
    """What the new snapshot consists of."""

    header: bytes
    length: int
    copies: tuple[tuple[Copy, ...], ...]
    """Of each source, in its order; empty for a source that is not needed."""
    in_pieces: bool
    """Whether it has parts of tensors only: the other ranks hold the rest."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Held:
    """A part of a tensor in a source."""

    source: int
    place: Placed
    box: Box
    shape: tuple[int, ...]
    """Of the whole tensor."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Goal:
    """What is needed of a tensor, and who holds parts of it."""

    entry: Entry
    box: Box
    shape: tuple[int, ...]
    parts: tuple[_Held, ...]


def plan(
    sources: Sequence[Snapshot],
    own: int,
    wanted: Sequence[Wanted] = (),
    *,
    ranks: int = 1,
    same_place: bool = False,
) -> Assembly:
    """Say how to make a rank's snapshot.

    Args:
        sources: of one step; of several that hold the same part, ``own`` and then the first wins.
        own: index of the one whose own tensors and plain data the rank takes.
        wanted: which boxes of pieces its training process needs; what is not named comes whole.
        ranks: of its pod that start from it (checkpoint.kinds); 0: its own tensors are enough.
        same_place: whether the one source is of this rank in a world of this size: what is not
            named then comes as it lies there.

    Raises:
        CheckpointError: no source holds a part that is needed, or the tensor has another shape.
        TornSnapshot: a source's header cannot be read.
    """
    kinds = [kinds_of(source) for source in sources]
    order = [own, *(index for index in range(len(sources)) if index != own)]
    held: dict[str, list[_Held]] = {}
    for index in order:
        for place in sources[index].tensors.values():
            if index == own or place.entry.name not in kinds[index].own:
                box, shape = kinds[index].box(place.entry), kinds[index].shape(place.entry)
                held.setdefault(place.entry.name, []).append(_Held(index, place, box, shape))
    goals = {
        name: _goal(name, parts, wanted, same_place=same_place) for name, parts in held.items()
    }
    common = 0
    if not ranks:
        shared = [goal.entry for name, goal in goals.items() if name not in kinds[own].own]
        common = common_of(snapshot.in_order(shared))
        goals = {name: goal for name, goal in goals.items() if name in kinds[own].own}
    pieces = {n: Piece(g.shape, g.box.offsets) for n, g in goals.items() if g.box.sizes != g.shape}
    told = Kinds(kinds[own].own, pieces, ranks=1 if pieces else ranks, common=common)
    metadata = {**sources[own].metadata, KEY: told.to_text()}
    metadata.pop(snapshot.TYPES_KEY, None)  # the header's own; written anew
    layout = snapshot.plan((goal.entry for goal in goals.values()), metadata)
    head = snapshot.header(layout, metadata)
    assert head is not None  # noqa: S101 - a new layout has room for its own header
    copies: list[list[Copy]] = [[] for _ in sources]
    for place in layout.placed:
        for source, copy in _fill(goals[place.entry.name], place.begin):
            copies[source].append(copy)
    ordered = (tuple(sorted(found, key=lambda copy: copy.begin)) for found in copies)
    return Assembly(head, layout.length, tuple(ordered), bool(pieces))


def _goal(
    name: str, parts: Sequence[_Held], wanted: Sequence[Wanted], *, same_place: bool
) -> _Goal:
    first = parts[0]
    for other in parts[1:]:
        if (other.shape, other.place.entry.dtype) != (first.shape, first.place.entry.dtype):
            raise errors.CheckpointError(
                f"{name} was saved as {first.place.entry.dtype} {first.shape} by one rank and as "
                f"{other.place.entry.dtype} {other.shape} by another"
            )
    box = first.box if same_place else Box((0,) * len(first.shape), first.shape)
    for wish in wanted:
        named = name.startswith(wish.name) if wish.prefix else name == wish.name
        if named and wish.shape == first.shape:
            box = Box(wish.offsets, wish.sizes)
        elif named and not wish.prefix:
            raise errors.DoesNotFit(
                f"{name} was saved with shape {first.shape}; this script has it as {wish.shape}"
            )
    entry = first.place.entry._replace(shape=box.sizes)
    return _Goal(entry, box, first.shape, tuple(parts))


def _fill(goal: _Goal, target: int) -> Iterator[tuple[int, Copy]]:
    """Cover the goal's box with what the sources hold, each element once."""
    missing = [] if goal.box.is_empty else [goal.box]
    for part in goal.parts:
        rest: list[Box] = []
        for box in missing:
            common = box.overlap(part.box)
            if common is None:
                rest.append(box)
                continue
            for copy in _runs(common, part, goal, target):
                yield part.source, copy
            rest.extend(_without(box, common))
        missing = rest
        if not missing:
            return
    if missing:
        raise errors.CheckpointError(
            f"nobody holds {goal.entry.name} from {missing[0].offsets} on, "
            f"{missing[0].sizes} of {goal.shape}: a rank's state is missing"
        )


def _without(box: Box, hole: Box) -> Iterator[Box]:
    """The box without a box inside it, as boxes."""
    offsets, sizes = list(box.offsets), list(box.sizes)
    for axis in range(len(sizes)):
        before = hole.offsets[axis] - offsets[axis]
        after = offsets[axis] + sizes[axis] - hole.offsets[axis] - hole.sizes[axis]
        if before:
            yield Box(tuple(offsets), (*sizes[:axis], before, *sizes[axis + 1 :]))
        if after:
            begin = hole.offsets[axis] + hole.sizes[axis]
            yield Box(
                (*offsets[:axis], begin, *offsets[axis + 1 :]),
                (*sizes[:axis], after, *sizes[axis + 1 :]),
            )
        offsets[axis], sizes[axis] = hole.offsets[axis], hole.sizes[axis]


def _runs(common: Box, part: _Held, goal: _Goal, target: int) -> Iterator[Copy]:
    """Bytes of a box inside two larger ones, both laid out row by row."""
    run, axis = goal.entry.width, len(common.sizes)
    while axis:
        axis -= 1
        run *= common.sizes[axis]
        if not common.sizes[axis] == part.box.sizes[axis] == goal.box.sizes[axis]:
            break
    there, here = (_steps(box, goal.entry.width) for box in (part.box, goal.box))
    count = common.sizes[axis - 1] if axis else 1
    for index in itertools.product(*(range(size) for size in common.sizes[: max(axis - 1, 0)])):
        at = [begin + i for begin, i in itertools.zip_longest(common.offsets, index, fillvalue=0)]
        yield Copy(
            begin=part.place.begin + _offset(at, part.box, there),
            step=there[axis - 1] if axis else run,
            target=target + _offset(at, goal.box, here),
            target_step=here[axis - 1] if axis else run,
            run=run,
            count=count,
        )


def _steps(box: Box, width: int) -> tuple[int, ...]:
    """Bytes from one index to the next, of each axis."""
    return tuple(width * math.prod(box.sizes[axis + 1 :]) for axis in range(len(box.sizes)))


def _offset(at: Sequence[int], box: Box, steps: Sequence[int]) -> int:
    return sum(
        (place - begin) * step for place, begin, step in zip(at, box.offsets, steps, strict=True)
    )


def scatter(block: memoryview, at: int, copies: Sequence[Copy], target: memoryview) -> None:
    """Move what a block of a source holds of the copies to where it goes.

    Args:
        block: bytes of the source.
        at: where the block begins in the source.
        copies: of that source.
        target: the new snapshot.
    """
    end = at + len(block)
    for copy in copies:
        if copy.begin >= end or copy.end <= at:
            continue
        first = max(0, (at - copy.begin - copy.run) // copy.step + 1) if copy.count > 1 else 0
        for number in range(first, copy.count):
            begin = copy.begin + number * copy.step
            if begin >= end:
                break
            low, high = max(begin, at), min(begin + copy.run, end)
            if low < high:
                place = copy.target + number * copy.target_step + low - begin
                target[place : place + high - low] = block[low - at : high - at]
