# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""States stored as a world's ranks store them, by the same code, in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from rover_kf.checkpoint.format import snapshot, tensor_layout
from rover_kf.checkpoint.format.manifest import CheckpointFolder, Manifest
from rover_kf.checkpoint.format.tensor_layout import TensorLayout, TensorShard
from rover_kf.checkpoint.resharding import write_shares
from rover_kf.checkpoint.storage.storage_protocol import Storage
from rover_kf.trainer.state import flatten as states
from rover_kf.trainer.state.flatten import FlatState
from tests.support.pods import trainer_slot
from tests.support.states import identities


def store(
    storage: Storage,
    step: int,
    ranks: Sequence[Mapping[str, object]],
    round_: int = 1,
    sharded: frozenset[str] = frozenset(),
    *,
    replicated: bool = True,
    saved_at: float = 0.0,
    metrics: Mapping[str, float] | None = None,
) -> CheckpointFolder:
    """Write a checkpoint.

    Args:
        storage: of the job.
        step: of it.
        ranks: each rank's state; of sharded tensors every one has the whole.
        round_: in which it was saved.
        sharded: names of tensors of which each rank keeps some rows only, as FSDP2 does.
        replicated: whether ranks hold the same parameters.
        saved_at: Unix seconds.
        metrics: what was measured of it.
    """
    state = identities.state(step, round_)
    folder, files = storage.folder(state), []
    for rank, content in enumerate(ranks):
        parts = states.flatten(content, replicated=replicated)
        slot = memoryview(trainer_slot.written(_cut(parts, sharded, rank, len(ranks))))
        share = write_shares.plan_share(snapshot.read(slot), rank, len(ranks))
        pieces = [memoryview(share.header), *(slot[begin:end] for begin, end in share.ranges)]
        files.append(storage.write_rank(folder, rank, pieces, share.length))
    return storage.write_manifest(
        Manifest(
            "",
            state,
            state,
            world_size=len(ranks),
            replicated=replicated and not sharded,
            files=tuple(files),
            saved_at=saved_at,
            pieces=bool(sharded),
            metrics=dict(metrics or {}),
        )
    )


def _cut(parts: FlatState, sharded: frozenset[str], rank: int, world_size: int) -> FlatState:
    tensors = dict(parts.tensors)
    held = tensor_layout.read_tensor_layout(snapshot.Snapshot({}, parts.metadata, 0))
    pieces = {}
    for name in sharded:
        whole = tensors[name]
        rows = -(-whole.shape[0] // world_size)
        begin = min(rank * rows, whole.shape[0])
        tensors[name] = whole[begin : begin + rows]
        pieces[name] = TensorShard(tuple(whole.shape), (begin, *(0 for _ in whole.shape[1:])))
    told = TensorLayout(held.rank_local - sharded, pieces).to_text()
    return FlatState(tensors, {**parts.metadata, tensor_layout.LAYOUT_KEY: told})


def training(seed: int = 0, *, rank: int = 0, lr: float = 1e-3) -> dict[str, object]:
    """A small training's state after one step: a model with buffers, an optimizer with moments,
    plain values, types that safetensors lacks, empty and scalar tensors."""
    torch.manual_seed(seed)
    layers = (torch.nn.Linear(300, 130), torch.nn.BatchNorm1d(130), torch.nn.Linear(130, 3))
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    model(torch.randn(8, 300)).square().mean().backward()
    optimizer.step()
    return {
        "model": model,
        "optimizer": optimizer,
        "half": torch.linspace(-2, 2, 9).to(torch.bfloat16),
        "complex": torch.full((2, 2), 1 + 2j, dtype=torch.complex128),
        "empty": torch.empty(0, 3),
        "generator": torch.full((4,), rank, dtype=torch.uint8),
        "epoch": 3,
        "best": float("nan"),
        "names": ("a", "b"),
        "raw": b"\x00\xff",
        "rank": rank,
    }
