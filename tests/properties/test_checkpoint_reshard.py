# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Split over one world, assembled in another: every element arrives, whatever the cuts."""

from __future__ import annotations

import dataclasses
import itertools
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rover_kf import errors
from rover_kf.api.checkpoints import RequestedBoxes
from rover_kf.checkpoint.format import snapshot
from rover_kf.checkpoint.format.snapshot import Entry
from rover_kf.checkpoint.format.tensor_layout import (
    LAYOUT_KEY,
    Box,
    TensorLayout,
    TensorShard,
    read_tensor_layout,
)
from rover_kf.checkpoint.resharding import assembly, write_shares
from rover_kf.checkpoint.resharding.copy_runs import scatter

DTYPES = {"U8": np.uint8, "F32": np.float32, "I64": np.int64, "F16": np.float16}
EXAMPLES = settings(deadline=None, max_examples=400, derandomize="CI" in os.environ)
shapes = st.lists(st.integers(0, 7), max_size=3).map(tuple)


def type_of(array: np.ndarray) -> str:
    """Its type's name in a file."""
    return {np.dtype(kind): name for name, kind in DTYPES.items()}[array.dtype]


def make_file(arrays: dict[str, np.ndarray], kinds: TensorLayout) -> bytes:
    """A snapshot's bytes."""
    entries = [Entry(n, type_of(a), a.shape, a.itemsize) for n, a in arrays.items()]
    metadata = {LAYOUT_KEY: kinds.to_text(), "rover.state": "{}"}
    layout = snapshot.plan(entries, metadata)
    head = snapshot.header(layout, metadata)
    data = b"".join(arrays[p.entry.name].tobytes() for p in layout.tensors)
    return head + data


def read_file(data: bytes) -> dict[str, np.ndarray]:
    """Its tensors."""
    found = snapshot.read(data)
    return {
        name: np.frombuffer(data[p.begin : p.end], DTYPES[p.entry.dtype]).reshape(p.entry.shape)
        for name, p in found.tensors.items()
    }


def written(data: bytes, rank: int, world_size: int) -> bytes:
    """The rank's file on storage."""
    share = write_shares.plan_share(snapshot.read(data), rank, world_size)
    file = share.header + b"".join(data[begin:end] for begin, end in share.ranges)
    assert len(file) == share.length
    return file


def assembled(
    files: list[bytes],
    own: int,
    wanted: tuple[RequestedBoxes, ...] = (),
    block: int = 7,
):
    """What a rank gets, moved in blocks of a few bytes."""
    made = assembly.plan([snapshot.read(file) for file in files], own, wanted)
    target = bytearray(made.header.ljust(made.length, b"\xee"))
    for file, copies in zip(files, made.copies, strict=True):
        for at in range(0, len(file), block):
            piece = memoryview(file)[at : at + block]
            scatter(piece, at, copies, memoryview(target))
    return bytes(target)


@st.composite
def states(draw):
    """Shared tensors, and a rank's own, by name."""
    count = draw(st.integers(0, 6))
    made = {}
    for number in range(count):
        dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
        shape = draw(shapes)
        size = int(np.prod(shape))
        made[f"t{number}"] = np.arange(size).astype(dtype).reshape(shape) + number
    return made


@EXAMPLES
@given(states(), st.integers(1, 5), st.integers(0, 200), st.data())
def test_a_shared_state_is_written_once_and_comes_back_whole(state, world_size, small, data):
    """All ranks' files together hold each byte once, and any rank gets all of it and its own."""
    own = {"rng": np.arange(5, dtype=np.uint8)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write_shares, "SMALL_BYTES", small)
        slots = [make_file(state | {"rng": own["rng"] + rank}, TensorLayout(frozenset({"rng"})))
                 for rank in range(world_size)]  # fmt: skip
        files = [written(slot, rank, world_size) for rank, slot in enumerate(slots)]
        commons = {write_shares.plan_share(snapshot.read(slot), r, world_size).replicated_crc
                   for r, slot in enumerate(slots)}  # fmt: skip
    assert len(commons) == 1
    shared = sum(
        array.nbytes for file in files for n, array in read_file(file).items() if n != "rng"
    )
    assert shared == sum(array.nbytes for array in state.values())
    rank = data.draw(st.integers(0, world_size - 1))
    found = read_file(assembled(files, rank, block=data.draw(st.integers(1, 999))))
    assert found.keys() == state.keys() | {"rng"}
    for name, array in state.items():
        np.testing.assert_array_equal(found[name], array)
    np.testing.assert_array_equal(found["rng"], own["rng"] + rank)


def cut(array: np.ndarray, parts: int, axis: int) -> list[tuple[tuple[int, ...], np.ndarray]]:
    """As torch.chunk cuts: equal parts, the last ones smaller or empty."""
    size = array.shape[axis]
    chunk = -(-size // parts) or 1
    found = []
    for part in range(parts):
        begin, end = (min(chunk * n, size) for n in (part, part + 1))
        offsets = tuple(begin if a == axis else 0 for a in range(array.ndim))
        found.append((offsets, np.ascontiguousarray(array.take(range(begin, end), axis))))
    return found


@EXAMPLES
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.integers(1, 300),
)
def test_pieces_come_back_in_another_cut(shape, worlds, axes, block):
    """Held by one world along one axis, wanted by another along another."""
    array = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    before, after = (axis % len(shape) for axis in axes)
    files = [
        written(
            make_file({"w": part}, TensorLayout(shards={"w": TensorShard(shape, offsets)})),
            rank,
            worlds[0],
        )
        for rank, (offsets, part) in enumerate(cut(array, worlds[0], before))
    ]
    for rank, (offsets, part) in enumerate(cut(array, worlds[1], after)):
        wish = RequestedBoxes(shape, offsets, part.shape, ("w",))
        data = assembled(files, rank % worlds[0], (wish,), block)
        np.testing.assert_array_equal(read_file(data)["w"], part)
        piece = read_tensor_layout(snapshot.read(data)).shards.get("w")
        assert piece == (None if part.shape == shape else TensorShard(shape, offsets))


@EXAMPLES
@given(st.integers(1, 3), st.integers(2, 5))
def test_a_part_that_nobody_holds_is_said(missing, world_size):
    """A file that is not there is named by the tensor's part, never passed over."""
    array = np.arange(60, dtype=np.float32).reshape(20, 3)
    files = [
        make_file({"w": part}, TensorLayout(shards={"w": TensorShard(array.shape, offsets)}))
        for offsets, part in cut(array, world_size, 0)
    ]
    del files[missing % world_size]
    with pytest.raises(errors.CheckpointError, match="nobody holds w from"):
        assembled(files, 0)


def test_a_ranks_own_slot_keeps_the_parts_that_are_not_named():
    """A copy of it from another pod's memory, in a world of the same size: best weights that a loop
    keeps are no tensors of the live state, and nobody else's slot is read."""
    array = np.arange(8, dtype=np.float32)
    slot = snapshot.read(
        make_file({"w": array[4:]}, TensorLayout(shards={"w": TensorShard((8,), (4,))}))
    )
    made = assembly.plan([slot], 0, (RequestedBoxes((8,), (4,), (4,), ("other",)),), same_rank=True)
    found = snapshot.read(made.header, made.length)
    assert read_tensor_layout(found).shards == {"w": TensorShard((8,), (4,))}


def test_copies_of_a_piece_go_to_storage_once():
    """Hybrid sharding holds a piece on several ranks; the first one writes it."""
    array = np.arange(8, dtype=np.float32)
    slots = [
        make_file({"w": array[4:]}, TensorLayout(shards={"w": TensorShard((8,), (4,), copy)}))
        for copy in (0, 1)
    ]
    assert [list(read_file(written(slot, r, 2))) for r, slot in enumerate(slots)] == [["w"], []]


def test_an_optimizers_state_lies_as_its_parameter():
    """A wish by prefix cuts what has the parameter's shape and leaves the rest whole."""
    moment, count = np.arange(12, dtype=np.float32).reshape(4, 3), np.float32(7).reshape(())
    kinds = TensorLayout(shards={"opt.0.m": TensorShard((4, 3), (0, 0))})
    file = make_file({"opt.0.m": moment, "opt.0.step": count}, kinds)
    wish = RequestedBoxes((4, 3), (2, 0), (2, 3), (), prefixes=("opt.0.",))
    found = read_file(assembled([file], 0, (wish,)))
    np.testing.assert_array_equal(found["opt.0.m"], moment[2:])
    assert found["opt.0.step"] == 7


def test_another_shape_is_refused():
    """A script whose layer has grown is told so before anything is copied."""
    file = make_file({"w": np.zeros((4, 3), np.float32)}, TensorLayout())
    with pytest.raises(errors.CheckpointError, match=r"saved with shape \(4, 3\).*\(5, 3\)"):
        assembled([file], 0, (RequestedBoxes((5, 3), (0, 0), (5, 3), ("w",)),))


@pytest.mark.parametrize(
    "piece", [TensorShard((4,), (3,)), TensorShard((4, 1), (0, 0)), TensorShard((4,), (-1,))]
)
def test_a_piece_outside_its_tensor_is_torn(piece):
    """A damaged header does not lead to bytes outside."""
    data = make_file({"w": np.zeros(2, np.float32)}, TensorLayout(shards={"w": piece}))
    with pytest.raises(errors.CorruptSnapshot, match="w of shape"):
        read_tensor_layout(snapshot.read(data))


@EXAMPLES
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6))
def test_all_boxes_of_two_cuts_overlap_in_all_elements(rows, columns, parts):
    """Overlaps of two cuts of one array count each element once."""
    boxes = [
        [Box(o, p.shape) for o, p in cut(np.zeros((rows, columns)), parts, axis)] for axis in (0, 1)
    ]
    both = [a.overlap(b) for a, b in itertools.product(*boxes)]
    assert sum(np.prod(box.sizes) for box in both if box) == rows * columns


def test_kinds_survive_their_text():
    """What the trainer writes the sidecar reads."""
    kinds = TensorLayout(frozenset({"a"}), {"b": TensorShard((3, 4), (1, 0), 2)})
    data = make_file({"a": np.zeros(1, np.uint8), "b": np.zeros((2, 4), np.uint8)}, kinds)
    assert read_tensor_layout(snapshot.read(data)) == kinds
    assert dataclasses.replace(kinds, rank_local=frozenset()) != kinds
