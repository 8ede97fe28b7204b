# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A rank's snapshot put together from others': after a change of size, or from files of many ranks.

Pure: plans which bytes of which source go where; the sidecar's restorer moves them. Tensors that
are the same everywhere come whole, whichever ranks wrote their parts; a piece comes as the box that
the rank's training process asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rover_kf import errors
from rover_kf.api.checkpoints import RequestedBoxes
from rover_kf.checkpoint.format import snapshot
from rover_kf.checkpoint.format.snapshot import Entry, PlacedTensor, Snapshot
from rover_kf.checkpoint.format.tensor_layout import (
    LAYOUT_KEY,
    Box,
    TensorLayout,
    TensorShard,
    read_tensor_layout,
)
from rover_kf.checkpoint.resharding.copy_runs import CopyRun, Strided, plan_runs
from rover_kf.checkpoint.resharding.requested_boxes import RequestedBoxIndex, index_requested

_REGENERATED_KEYS = frozenset({LAYOUT_KEY, snapshot.TYPES_KEY})
"""Of a header's metadata; long where there are many tensors."""


@dataclasses.dataclass(frozen=True, slots=True)
class Assembly:
    """What the new snapshot consists of."""

    header: bytes
    length: int
    copies: tuple[tuple[CopyRun, ...], ...]
    """Of each source, in its order; empty for a source that is not needed."""
    is_sharded: bool
    """Whether it has parts of tensors only: the other ranks hold the rest."""


class _Contribution(NamedTuple):
    """What a source gives of a tensor."""

    source: int
    number: int
    """Of the sources that give some of it: where it begins there the tensor's goal tells."""
    source_box: Box
    box: Box


class _Coverage(NamedTuple):
    """What is needed, and who gives it, of tensors that are cut alike: there may be thousands."""

    box: Box
    shape: tuple[int, ...]
    """Of the whole tensor."""
    missing: tuple[Box, ...]
    contributions: tuple[_Contribution, ...] = ()
    contributor_count: int = 0

    def with_source(self, source: int, available: Box) -> _Coverage:
        """Have a source give what is still missing: each element comes once."""
        rest: list[Box] = []
        gifts: list[_Contribution] = []
        for box in self.missing:
            common = box.overlap(available)
            if common is None:
                rest.append(box)
            else:
                gifts.append(_Contribution(source, self.contributor_count, available, common))
                rest.extend(_subtract(box, common))
        if not gifts:
            return self
        return self._replace(
            missing=tuple(rest),
            contributions=(*self.contributions, *gifts),
            contributor_count=self.contributor_count + 1,
        )


@dataclasses.dataclass(slots=True)
class _Target:
    """Of one tensor."""

    entry: Entry
    coverage: _Coverage
    source_offsets: tuple[int, ...] = ()
    """Where it begins in each source that gives some of it."""

    def check(self) -> None:
        """Refuse to do without a part.

        Raises:
            CheckpointError: nobody gives it.
        """
        for missing in self.coverage.missing:
            raise errors.CheckpointError(
                f"nobody holds {self.entry.name} from {missing.offsets} on, {missing.sizes} of "
                f"{self.coverage.shape}: a rank's state is missing"
            )


@dataclasses.dataclass(frozen=True, slots=True)
class _RankLocal:
    """Of the source whose own tensors and plain data the rank takes."""

    names: frozenset[str]
    metadata: Mapping[str, str]


class Assembler:
    """Makes the plan from what one source after the other holds, and keeps of each what it gives.

    All that hundreds of ranks hold of thousands of tensors would not fit into a sidecar.

    Args:
        requested: which boxes of pieces the training process needs; what is not named comes whole.
        same_rank: whether the one source is of this rank in a world of this size: what is not
            named then comes as it lies there.
    """

    def __init__(self, requested: RequestedBoxIndex, *, same_rank: bool = False) -> None:
        self._requested, self._same_rank = requested, same_rank
        self._targets: dict[str, _Target] = {}
        self._rank_local: _RankLocal | None = None
        self._coverages: dict[tuple[Box, tuple[int, ...]], _Coverage] = {}
        self._transitions: dict[tuple[int, Box], tuple[_Coverage, _Coverage]] = {}
        """What becomes of a course, here by its identity, where the present source holds a box."""

    def add(self, source: int, head: Snapshot, layout: TensorLayout) -> None:
        """Tell of the next source; of several that hold the same part the first one gives it.

        Args:
            source: its index; the first one that is told has the rank's own tensors.
            head: what it holds, of the one step.
            layout: of its tensors.

        Raises:
            CheckpointError: it has a tensor in another shape than one before, or than the script.
        """
        is_own = self._rank_local is None
        if is_own:
            told = {
                name: text for name, text in head.metadata.items() if name not in _REGENERATED_KEYS
            }
            self._rank_local = _RankLocal(layout.rank_local, told)
        for place in head.tensors.values():
            if is_own or place.entry.name not in layout.rank_local:
                self._add_tensor(source, place, layout)
        self._transitions.clear()

    def _add_tensor(self, source: int, tensor: PlacedTensor, layout: TensorLayout) -> None:
        entry, shape = tensor.entry, layout.full_shape(tensor.entry)
        goal = self._targets.get(entry.name)
        if goal is None:
            goal = self._targets[entry.name] = self._make_target(entry, shape, layout)
        elif (shape, entry.dtype) != (goal.coverage.shape, goal.entry.dtype):
            known = f"{goal.entry.dtype} {goal.coverage.shape}"
            raise errors.CheckpointError(
                f"{entry.name} was saved as {known} by one rank and as {entry.dtype} {shape} by "
                "another"
            )
        if goal.coverage.missing:
            course, there = goal.coverage, layout.box(entry)
            key = id(course), there
            if key not in self._transitions:
                self._transitions[key] = course, course.with_source(source, there)
            goal.coverage = self._transitions[key][1]
            if goal.coverage is not course:
                goal.source_offsets += (tensor.begin,)

    def _make_target(self, entry: Entry, shape: tuple[int, ...], layout: TensorLayout) -> _Target:
        box = self._requested.box(entry.name, shape)
        if box is None:
            whole = Box((0,) * len(shape), shape)
            box = layout.box(entry) if self._same_rank else whole
        missing = () if box.is_empty else (box,)
        course = self._coverages.setdefault((box, shape), _Coverage(box, shape, missing))
        return _Target(entry._replace(shape=course.box.sizes), course)

    def build(self, source_count: int) -> Assembly:
        """The plan, when so many sources have been told.

        Raises:
            CheckpointError: no source holds a part that is needed.
        """
        assert self._rank_local is not None  # noqa: S101 - there is a source
        goals, own = self._targets, self._rank_local
        courses = ((name, goal.coverage) for name, goal in goals.items())
        pieces = {
            n: TensorShard(c.shape, c.box.offsets) for n, c in courses if c.box.sizes != c.shape
        }
        told = TensorLayout(own.names, pieces, complete=bool(pieces))
        metadata = {**own.metadata, LAYOUT_KEY: told.to_text()}
        layout = snapshot.plan((goal.entry for goal in goals.values()), metadata)
        head = snapshot.header(layout, metadata)
        assert head is not None  # noqa: S101 - a new layout has room for its own header
        copies: list[list[CopyRun]] = [[] for _ in range(source_count)]
        for place in layout.tensors:
            goal = goals[place.entry.name]
            goal.check()
            here = Strided(place.begin, goal.coverage.box)
            for gift in goal.coverage.contributions:
                there = Strided(goal.source_offsets[gift.number], gift.source_box)
                copies[gift.source] += plan_runs(gift.box, there, here, goal.entry.width)
        ordered = (tuple(sorted(found, key=lambda copy: copy.begin)) for found in copies)
        return Assembly(head, layout.length, tuple(ordered), bool(pieces))


def plan(
    sources: Sequence[Snapshot],
    local_index: int,
    requested: Sequence[RequestedBoxes] = (),
    *,
    same_rank: bool = False,
) -> Assembly:
    """Say how to make a rank's snapshot of sources that are all at hand.

    Args:
        sources: of one step; of several that hold the same part, ``local_index`` and then the
            first wins.
        local_index: index of the one whose own tensors and plain data the rank takes.
        requested: see Assembler.
        same_rank: likewise.

    Raises:
        CheckpointError: no source holds a part that is needed, or the tensor has another shape.
        CorruptSnapshot: a source's header cannot be read.
    """
    assembler = Assembler(index_requested(requested), same_rank=same_rank)
    for index in (local_index, *(index for index in range(len(sources)) if index != local_index)):
        assembler.add(index, sources[index], read_tensor_layout(sources[index]))
    return assembler.build(len(sources))


def _subtract(box: Box, hole: Box) -> Iterator[Box]:
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
