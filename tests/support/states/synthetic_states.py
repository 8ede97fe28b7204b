# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""States of which every byte is known from step, round, rank and form: what a restore has to bring.

Two rounds' states of one step differ in every tensor, so that a mixture is seen.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import random

from rover_kf.api.checkpoints import RequestedBoxes
from rover_kf.checkpoint.format import snapshot
from rover_kf.checkpoint.format.snapshot import Entry
from rover_kf.checkpoint.format.tensor_layout import LAYOUT_KEY, TensorLayout, TensorShard

FORMS = ("replicated", "sharded", "own")
"""DDP: the same on all ranks, cut on storage. FSDP2: in pieces. Neither: each rank for itself."""
_COLUMNS = 128
"""Of F64."""


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """What a state consists of."""

    kind: str
    world_size: int = 2
    all_rows: int = 66
    """Of the large tensor; from 65 on it is not too small to be cut."""

    @property
    def replicated(self) -> bool:
        """Whether one rank's slot serves all."""
        return self.kind == "replicated"

    @property
    def pieces(self) -> bool:
        """Whether all slots together serve a world of any size."""
        return self.kind == "sharded"

    def rows(self, rank: int) -> tuple[int, int]:
        """Of the large tensor that a rank holds: where they begin, and how many."""
        if not self.pieces:
            return 0, self.all_rows
        each = self.all_rows // self.world_size
        return rank * each, each

    def wanted(self, rank: int) -> tuple[RequestedBoxes, ...]:
        """What a training process asks for."""
        begin, count = self.rows(rank)
        shape = (self.all_rows, _COLUMNS)
        asked = RequestedBoxes(shape, (begin, 0), (count, _COLUMNS), ("large",))
        return (asked,) if self.pieces else ()

    def tensors(self, step: int, round_: int, rank: int) -> dict[str, bytes]:
        """Every tensor of a rank."""
        begin, count = self.rows(rank)
        whose = "" if self.kind != "own" else f" of rank {rank}"
        width = 8 * _COLUMNS
        large = _noise(f"large {step} {round_}{whose}", self.all_rows * width)
        return {
            "large": large[begin * width : (begin + count) * width],
            "small": _noise(f"small {step} {round_}{whose}", 40),
            "generator": _noise(f"generator {step} {round_} of rank {rank}", 24),
        }

    def bytes_of(self, step: int, round_: int, rank: int) -> bytes:
        """A slot's content."""
        found = self.tensors(step, round_, rank)
        begin, count = self.rows(rank)
        entries = [
            Entry("large", "F64", (count, _COLUMNS), 8),
            Entry("small", "F32", (10,), 4),
            Entry("generator", "U8", (24,), 1),
        ]
        pieces = (
            {"large": TensorShard((self.all_rows, _COLUMNS), (begin, 0))} if self.pieces else {}
        )
        metadata = {"rover.state": json.dumps([step, round_])}
        if self.kind != "own":
            metadata[LAYOUT_KEY] = TensorLayout(frozenset({"generator"}), pieces).to_text()
        layout = snapshot.plan(entries, metadata)
        head = snapshot.header(layout, metadata)
        assert head is not None
        return head + b"".join(found[place.entry.name] for place in layout.tensors)

    def check(self, data: bytes, step: int, rank: int) -> int:
        """Compare every byte of a rank's restored snapshot; the round that made it."""
        found = snapshot.read(data)
        told, round_ = json.loads(found.metadata["rover.state"])
        assert told == step
        known = self.tensors(step, round_, rank)
        places = found.tensors
        assert {name: data[p.begin : p.end] for name, p in places.items()} == known
        assert places["large"].entry.shape == (self.rows(rank)[1], _COLUMNS)
        return int(round_)


@functools.lru_cache(maxsize=64)
def _noise(seed: str, count: int) -> bytes:
    return random.Random(seed).randbytes(count)
