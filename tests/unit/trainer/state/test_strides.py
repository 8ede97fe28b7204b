# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors come back in the order in memory that they had, as from torch.save."""

from __future__ import annotations

import contextlib
import json

import pytest
import torch

from rover_kf import errors
from rover_kf.checkpoint.format import snapshot
from rover_kf.trainer.restore import load
from rover_kf.trainer.staging import copy_batches, copy_threads
from rover_kf.trainer.state import strides, tensor_views
from rover_kf.trainer.state.flatten_cache import FlattenCache
from tests.support.pods import trainer_slot

pytestmark = pytest.mark.torch


def _training(seed: int, kind: type[torch.optim.Optimizer]) -> dict[str, object]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 1, 3))
    model.to(memory_format=torch.channels_last)
    return {"model": model, "optimizer": kind(model.parameters(), lr=0.01, fused=True)}


def _steps(state: dict[str, object], numbers: range) -> None:
    for number in numbers:
        given = torch.Generator().manual_seed(number)
        images = torch.randn(2, 3, 8, 8, generator=given)
        state["optimizer"].zero_grad()
        found = state["model"](images.contiguous(memory_format=torch.channels_last))
        found.square().mean().backward()
        state["optimizer"].step()


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adagrad])
def test_a_fused_optimizer_goes_on_with_channels_last(kind):
    """It reads weights and moments side by side as they lie in memory."""
    state, live = _training(1, kind), _training(2, kind)
    _steps(state, range(3))
    trainer_slot.restored(trainer_slot.written(FlattenCache().flatten(state)), live)
    _steps(state, range(3, 6))
    _steps(live, range(3, 6))
    pairs = zip(state["model"].parameters(), live["model"].parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


LYING = {
    "transposed": torch.arange(6.0).view(2, 3).T,
    "channels_last": torch.arange(72.0).view(2, 3, 3, 4).permute(0, 3, 1, 2),
    "one channel": torch.empty_strided((2, 1, 3, 3), (9, 1, 3, 1)).fill_(1.5),
    "larger than a batch": torch.ones(2, copy_batches.BATCH_BYTES // 4).T,
    "rows": torch.arange(6.0).view(2, 3),
    "a column of a table": torch.arange(6.0).view(2, 3)[:, 1],
    "one number for all": torch.ones(1).expand(3),
    "nothing": torch.empty(0, 3).T,
}


def test_tensors_lie_as_they_lay():
    """Those that have their bytes to themselves; others row by row."""
    buffer = trainer_slot.written(FlattenCache().flatten({"kept": LYING}))
    live = {"kept": {}}
    trainer_slot.restored(buffer, live, threads=2)
    alone = ["transposed", "channels_last", "one channel", "larger than a batch", "rows"]
    for name, tensor in LYING.items():
        found = live["kept"][name]
        assert torch.equal(found, tensor)
        wanted = tensor if name in alone else tensor.contiguous()
        assert found.is_contiguous() == wanted.is_contiguous()
        assert name not in alone or found.stride() == tensor.stride()


@pytest.mark.parametrize("text", ['{"kept": [1]', "[3]", '{"kept.rows": ["x"]}'])
def test_strides_that_cannot_be_read_are_told(text):
    """As any other damage is."""
    with pytest.raises(errors.CorruptSnapshot, match="strides"):
        strides.read({strides.KEY: text})


@pytest.mark.parametrize("wrong", [[1], [7, 1], [0, 0], [-3, 1], [10**18, 1]])
def test_strides_that_do_not_fit_are_passed_over(wrong):
    """The values are there all the same, and no memory is taken by a number in a file."""
    parts = FlattenCache().flatten({"kept": {"rows": torch.arange(6.0).view(2, 3)}})
    buffer = trainer_slot.written(parts)
    found = snapshot.read(memoryview(buffer))
    told = {**found.metadata, strides.KEY: json.dumps({"kept.rows": wrong})}
    live, tensors = {"kept": {}}, tensor_views.tensor_views(buffer, found.tensors)
    with contextlib.closing(copy_threads.CopyThreads(0)) as helping:
        load.StateLoader(live, told, tensors, threads=helping).finish()
    assert live["kept"]["rows"].tolist() == [[0, 1, 2], [3, 4, 5]]
