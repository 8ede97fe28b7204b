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
from rover_kf.api.checkpoints import Wanted
from rover_kf.checkpoint.format import snapshot
from rover_kf.checkpoint.format.snapshot import Entry, Placed, Snapshot
from rover_kf.checkpoint.format.tensor_layout import KEY, Box, Kinds, Piece, kinds_of
from rover_kf.checkpoint.resharding.copy_runs import Copy, Lying, runs
from rover_kf.checkpoint.resharding.requested_boxes import Wishes, wishes_of
from rover_kf.checkpoint.resharding.write_shares import common_of

_MADE_ANEW = frozenset({KEY, snapshot.TYPES_KEY})
"""Of a header's metadata; long where there are many tensors."""


@dataclasses.dataclass(frozen=True, slots=True)
class Assembly:
    """What the new snapshot consists of."""

    header: bytes
    length: int
    copies: tuple[tuple[Copy, ...], ...]
    """Of each source, in its order; empty for a source that is not needed."""
    in_pieces: bool
    """Whether it has parts of tensors only: the other ranks hold the rest."""


class _Gift(NamedTuple):
    """What a source gives of a tensor."""

    source: int
    number: int
    """Of the sources that give some of it: where it begins there the tensor's goal tells."""
    there: Box
    box: Box


class _Course(NamedTuple):
    """What is needed, and who gives it, of tensors that are cut alike: there may be thousands."""

    box: Box
    shape: tuple[int, ...]
    """Of the whole tensor."""
    missing: tuple[Box, ...]
    gifts: tuple[_Gift, ...] = ()
    givers: int = 0

    def after(self, source: int, there: Box) -> _Course:
        """Have a source give what is still missing: each element comes once."""
        rest: list[Box] = []
        gifts: list[_Gift] = []
        for box in self.missing:
            common = box.overlap(there)
            if common is None:
                rest.append(box)
            else:
                gifts.append(_Gift(source, self.givers, there, common))
                rest.extend(_without(box, common))
        if not gifts:
            return self
        return self._replace(
            missing=tuple(rest), gifts=(*self.gifts, *gifts), givers=self.givers + 1
        )


@dataclasses.dataclass(slots=True)
class _Goal:
    """Of one tensor."""

    entry: Entry
    course: _Course
    begins: tuple[int, ...] = ()
    """Where it begins in each source that gives some of it."""

    def check(self) -> None:
        """Refuse to do without a part.

        Raises:
            CheckpointError: nobody gives it.
        """
        for missing in self.course.missing:
            raise errors.CheckpointError(
                f"nobody holds {self.entry.name} from {missing.offsets} on, {missing.sizes} of "
                f"{self.course.shape}: a rank's state is missing"
            )


@dataclasses.dataclass(frozen=True, slots=True)
class _Own:
    """Of the source whose own tensors and plain data the rank takes."""

    names: frozenset[str]
    metadata: Mapping[str, str]


class Assembler:
    """Makes the plan from what one source after the other holds, and keeps of each what it gives.

    All that hundreds of ranks hold of thousands of tensors would not fit into a sidecar.

    Args:
        wishes: which boxes of pieces the training process needs; what is not named comes whole.
        ranks: of its pod that start from it (checkpoint.kinds); 0: its own tensors are enough.
        same_place: whether the one source is of this rank in a world of this size: what is not
            named then comes as it lies there.
    """

    def __init__(self, wishes: Wishes, *, ranks: int = 1, same_place: bool = False) -> None:
        self._wishes, self._ranks, self._same_place = wishes, ranks, same_place
        self._goals: dict[str, _Goal] = {}
        self._own: _Own | None = None
        self._begun: dict[tuple[Box, tuple[int, ...]], _Course] = {}
        self._turns: dict[tuple[int, Box], tuple[_Course, _Course]] = {}
        """What becomes of a course, here by its identity, where the present source holds a box."""

    def add(self, source: int, head: Snapshot, kinds: Kinds) -> None:
        """Tell of the next source; of several that hold the same part the first one gives it.

        Args:
            source: its index; the first one that is told has the rank's own tensors.
            head: what it holds, of the one step.
            kinds: of its tensors.

        Raises:
            CheckpointError: it has a tensor in another shape than one before, or than the script.
        """
        is_own = self._own is None
        if is_own:
            told = {name: text for name, text in head.metadata.items() if name not in _MADE_ANEW}
            self._own = _Own(kinds.own, told)
        for place in head.tensors.values():
            if is_own or place.entry.name not in kinds.own:
                self._take(source, place, kinds)
        self._turns.clear()

    def _take(self, source: int, place: Placed, kinds: Kinds) -> None:
        entry, shape = place.entry, kinds.shape(place.entry)
        goal = self._goals.get(entry.name)
        if goal is None:
            goal = self._goals[entry.name] = self._goal(entry, shape, kinds)
        elif (shape, entry.dtype) != (goal.course.shape, goal.entry.dtype):
            known = f"{goal.entry.dtype} {goal.course.shape}"
            raise errors.CheckpointError(
                f"{entry.name} was saved as {known} by one rank and as {entry.dtype} {shape} by "
                "another"
            )
        if goal.course.missing:
            course, there = goal.course, kinds.box(entry)
            key = id(course), there
            if key not in self._turns:
                self._turns[key] = course, course.after(source, there)
            goal.course = self._turns[key][1]
            if goal.course is not course:
                goal.begins += (place.begin,)

    def _goal(self, entry: Entry, shape: tuple[int, ...], kinds: Kinds) -> _Goal:
        box = self._wishes.box(entry.name, shape)
        if box is None:
            whole = Box((0,) * len(shape), shape)
            box = kinds.box(entry) if self._same_place else whole
        missing = () if box.is_empty else (box,)
        course = self._begun.setdefault((box, shape), _Course(box, shape, missing))
        return _Goal(entry._replace(shape=course.box.sizes), course)

    def made(self, sources: int) -> Assembly:
        """The plan, when so many sources have been told.

        Raises:
            CheckpointError: no source holds a part that is needed.
        """
        assert self._own is not None  # noqa: S101 - there is a source
        goals, own, common = self._goals, self._own, 0
        if not self._ranks:
            shared = [goal.entry for name, goal in goals.items() if name not in own.names]
            common = common_of(snapshot.in_order(shared))
            goals = {name: goal for name, goal in goals.items() if name in own.names}
        courses = ((name, goal.course) for name, goal in goals.items())
        pieces = {n: Piece(c.shape, c.box.offsets) for n, c in courses if c.box.sizes != c.shape}
        ranks = 1 if pieces else self._ranks
        told = Kinds(own.names, pieces, ranks=ranks, common=common, complete=bool(pieces))
        metadata = {**own.metadata, KEY: told.to_text()}
        layout = snapshot.plan((goal.entry for goal in goals.values()), metadata)
        head = snapshot.header(layout, metadata)
        assert head is not None  # noqa: S101 - a new layout has room for its own header
        copies: list[list[Copy]] = [[] for _ in range(sources)]
        for place in layout.placed:
            goal = goals[place.entry.name]
            goal.check()
            here = Lying(place.begin, goal.course.box)
            for gift in goal.course.gifts:
                there = Lying(goal.begins[gift.number], gift.there)
                copies[gift.source] += runs(gift.box, there, here, goal.entry.width)
        ordered = (tuple(sorted(found, key=lambda copy: copy.begin)) for found in copies)
        return Assembly(head, layout.length, tuple(ordered), bool(pieces))


def plan(
    sources: Sequence[Snapshot],
    own: int,
    wanted: Sequence[Wanted] = (),
    *,
    ranks: int = 1,
    same_place: bool = False,
) -> Assembly:
    """Say how to make a rank's snapshot of sources that are all at hand.

    Args:
        sources: of one step; of several that hold the same part, ``own`` and then the first wins.
        own: index of the one whose own tensors and plain data the rank takes.
        wanted: see Assembler, as the others.
        ranks: likewise.
        same_place: likewise.

    Raises:
        CheckpointError: no source holds a part that is needed, or the tensor has another shape.
        TornSnapshot: a source's header cannot be read.
    """
    assembler = Assembler(wishes_of(wanted), ranks=ranks, same_place=same_place)
    for index in (own, *(index for index in range(len(sources)) if index != own)):
        assembler.add(index, sources[index], kinds_of(sources[index]))
    return assembler.made(len(sources))


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
