# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts: 18,432 parameters (48 layers of 128 experts), and all that is kept of each.

What looked at each of them for each of them took minutes here, beyond the tests' time limit.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from rover_kf.api import codec
from rover_kf.api.checkpoints import RestoreRequest
from rover_kf.checkpoint.format import snapshot
from rover_kf.checkpoint.format.snapshot import Entry
from rover_kf.checkpoint.format.tensor_layout import (
    LAYOUT_KEY,
    TensorLayout,
    TensorShard,
    read_tensor_layout,
)
from rover_kf.checkpoint.resharding import write_shares
from rover_kf.checkpoint.resharding.prefix_index import index_by_prefix
from rover_kf.checkpoint.resharding.requested_boxes import (
    TensorBox,
    group_by_box,
    index_requested,
    matches_request,
)
from rover_kf.sidecar.http.app import MAX_LOCAL_BODY_BYTES
from rover_kf.trainer.state.dtensor import DTensorLayouts, LocalShard
from rover_kf.trainer.state.json_template import template_of
from tests.support.states import identities

pytestmark = pytest.mark.torch

NAMES = [
    f"model.layers.{layer}.mlp.experts.{expert}.{kind}.weight"
    for layer, expert, kind in itertools.product(range(48), range(128), ("gate", "up", "down"))
]
SHAPE, OFFSETS, SIZES = (768, 2048), (96, 0), (12, 2048)
MOMENTS = [
    f"optimizer.{name}.{what}" for name in NAMES for what in ("step", "exp_avg", "exp_avg_sq")
]
ALL = (*NAMES, *MOMENTS)


def test_what_a_rank_holds_is_told_and_found():
    """Of each parameter, and of what its optimizer keeps of it by the begin of the name."""
    place = TensorBox(SHAPE, OFFSETS, SIZES)
    begins = {f"optimizer.{name}.": place for name in NAMES}
    told = group_by_box(dict.fromkeys(NAMES, place), begins)
    assert [(one.names, one.prefixes) for one in told] == [(tuple(NAMES), tuple(begins))]
    body = codec.dumps(
        RestoreRequest(
            local_rank=0, rank=0, world_size=64, round=identities.round_id(1), requested=told
        )
    )
    assert len(body) < MAX_LOCAL_BODY_BYTES
    wishes = index_requested(codec.loads(RestoreRequest, body).requested)
    for name in (*NAMES, *MOMENTS):
        box = wishes.box(name, SHAPE)
        assert box is not None
        assert (box.offsets, box.sizes) == (OFFSETS, SIZES)


def test_a_rank_whose_pieces_are_all_its_slot_stores_it_as_it_is():
    """As under FSDP2: the file is the slot, with its header."""
    entries = [Entry(name, "F32", () if name.endswith("step") else SIZES, 4) for name in ALL]
    pieces = {entry.name: TensorShard(SHAPE, OFFSETS) for entry in entries if entry.shape}
    metadata = {LAYOUT_KEY: TensorLayout(shards=pieces, complete=True).to_text()}
    layout = snapshot.plan(entries, metadata)
    head = snapshot.header(layout, metadata)
    assert head is not None
    slot = snapshot.read(head, layout.length)
    found = write_shares.plan_share(slot, 3, 64)
    assert (found.header, found.ranges) == (b"", ((0, layout.length),))
    assert found.length == layout.length
    place = TensorBox(SHAPE, OFFSETS, SIZES)
    begins = {f"optimizer.{name}.": place for name in NAMES}
    wishes = index_requested(group_by_box(dict.fromkeys(NAMES, place), begins))
    assert matches_request(slot, read_tensor_layout(slot), wishes)


@pytest.mark.parametrize("way", ["not complete", "not named", "elsewhere", "a copy", "all whole"])
def test_what_else_a_rank_holds_is_put_together(way):
    """A mesh that was changed at one size, a script that holds all of it now, what copies have not
    written, and a state of which most is the same on all ranks."""
    entries = [Entry("w", "F32", (2, 4), 4), Entry("step", "F32", (), 4)]
    if way == "all whole":
        entries.append(Entry("large", "F32", (64,), 4))
    piece = TensorShard((4, 4), (2, 0), copy=int(way == "a copy"))
    kinds = TensorLayout(shards={"w": piece}, complete=way != "not complete")
    layout = snapshot.plan(entries, {LAYOUT_KEY: kinds.to_text()})
    head = snapshot.header(layout, {LAYOUT_KEY: kinds.to_text()})
    assert head is not None
    slot = snapshot.read(head, layout.length)
    assert bool(write_shares.plan_share(slot, 1, 2).header) is (
        way in {"not complete", "a copy", "all whole"}
    )
    place = TensorBox((4, 4), (0, 0) if way == "elsewhere" else (2, 0), (2, 4))
    wishes = index_requested(group_by_box({"w": place} if way != "not named" else {}))
    assert matches_request(slot, read_tensor_layout(slot), wishes) is (
        way in {"a copy", "all whole"}
    )


def test_layouts_are_found_for_restored_tensors():
    """The layout of a moment is its parameter's."""
    shard = LocalShard(None, (), (2048, 1), TensorShard(SHAPE, OFFSETS), SIZES)
    known = DTensorLayouts({}, index_by_prefix({f"optimizer.{name}.": shard for name in NAMES}))
    part, piece = torch.empty(SIZES, device="meta"), TensorShard(SHAPE, OFFSETS)
    assert all(known.layout_for(name, part, piece) is shard for name in MOMENTS)


def test_the_plain_data_is_taken_apart():
    """Hundreds of thousands of texts without a scalar between them."""
    nodes = [["n", [[name, {"d": [["exp_avg", {"T": name}]]}]]] for name in MOMENTS]
    tree = {"d": [[str(index), dict([node])] for index, node in enumerate(nodes * 2)]}
    found = template_of(tree)
    assert (len(found.between), found.scalars) == (1, ())
    assert found.text().count('{"T":') == 2 * len(MOMENTS)
