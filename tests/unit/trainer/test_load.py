# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Restored values: made by several threads, in memory of their own, the way each module wants."""

from __future__ import annotations

import contextlib
import mmap

import pytest
import torch
import trainer_slot

from rover_kf.checkpoint import snapshot
from rover_kf.trainer import hands, load, state, views

pytestmark = pytest.mark.torch


class _Doubling(torch.nn.Linear):
    """Loads twice what it is given, as modules do that change a format."""

    def _load_from_state_dict(self, state_dict, prefix, *rest):
        state_dict[prefix + "weight"] = state_dict[prefix + "weight"] * 2
        super()._load_from_state_dict(state_dict, prefix, *rest)


class _Asked(torch.nn.Linear):
    """Keeps what its load_state_dict was given."""

    def load_state_dict(self, state_dict, *rest, **named):
        self.given = {name: tensor.clone() for name, tensor in state_dict.items()}
        return super().load_state_dict(state_dict, *rest, **named)


class _Keeping(torch.nn.Linear):
    """Keeps the tensors that it is given, as metrics do that are modules."""

    def _load_from_state_dict(self, state_dict, prefix, *rest):
        self.kept = [state_dict[prefix + "weight"], state_dict[prefix + "bias"]]
        super()._load_from_state_dict(state_dict, prefix, *rest)


class _Assigning(torch.nn.Linear):
    """Takes what it is given in place of its parameters."""

    def load_state_dict(self, state_dict, **named):
        return super().load_state_dict(state_dict, **{**named, "assign": True})


def _snapshot(content: dict[str, object]) -> mmap.mmap:
    return trainer_slot.written(state.take_apart(content))


def _load(buffer: mmap.mmap, live: dict[str, object], threads: int) -> None:
    found = snapshot.read(memoryview(buffer))
    tensors = views.views(buffer, found.tensors)
    with contextlib.closing(hands.Hands(threads - 1)) as helping:
        load.Loading(live, found.metadata, tensors, hands=helping).finish()


def _trained(seed: int, steps: int) -> dict[str, object]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(1500, 1500), torch.nn.BatchNorm1d(1500), torch.nn.Linear(1500, 3)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.rand(4, 1500)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return {"model": model, "optimizer": optimizer, "kept": torch.rand(1 << 21), "note": [1, "a"]}


def _tensors(content: dict[str, object]) -> dict[str, torch.Tensor]:
    return dict(state.take_apart(content).tensors)


@pytest.mark.parametrize("threads", [1, 3])
def test_values_come_back_in_memory_of_their_own(threads):
    """Large and small tensors, of a module, an optimizer and the dict itself; what becomes of the
    slot afterwards changes nothing."""
    saved = _trained(1, 2)
    buffer = _snapshot(saved)
    live = _trained(2, 0)
    parameter = live["model"][0].weight
    _load(buffer, live, threads)
    buffer[:] = bytes(len(buffer))
    assert live["model"][0].weight is parameter
    assert live["note"] == [1, "a"]
    found, expected = _tensors(live), _tensors(saved)
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_module_that_changes_what_it_loads_does_so_once():
    """Its own way of loading sees the saved values."""
    saved = torch.nn.Linear(30, 30)
    buffer = _snapshot({"model": torch.nn.Sequential(saved)})
    live = torch.nn.Sequential(_Doubling(30, 30))
    _load(buffer, {"model": live}, 2)
    assert torch.equal(live[0].weight, saved.weight * 2)
    assert torch.equal(live[0].bias, saved.bias)


def test_a_load_hook_sees_the_saved_values():
    """Also the one that renames: its module's tensors are not touched ahead of it."""
    saved = torch.nn.Linear(30, 30)
    buffer = _snapshot({"model": saved})
    live = torch.nn.Linear(30, 30)
    before, seen = live.weight.detach().clone(), []

    def hook(_, state_dict, prefix, *rest):
        del rest
        seen.append((state_dict[prefix + "weight"].clone(), live.weight.detach().clone()))

    live.register_load_state_dict_pre_hook(hook)
    _load(buffer, {"model": live}, 2)
    ((given, then),) = seen
    assert torch.equal(given, saved.weight)
    assert torch.equal(then, before)
    assert torch.equal(live.weight, saved.weight)


def test_an_overridden_load_state_dict_is_called_with_the_saved_values():
    """As by torch itself."""
    saved = torch.nn.Linear(30, 30)
    live = _Asked(30, 30)
    _load(_snapshot({"model": saved}), {"model": live}, 2)
    assert torch.equal(live.given["weight"], saved.weight)
    assert torch.equal(live.weight, saved.weight)


def test_a_wrong_shape_is_torchs_own_error():
    """And names the parameter."""
    buffer = _snapshot({"model": torch.nn.Linear(30, 30)})
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        _load(buffer, {"model": torch.nn.Linear(31, 30)}, 2)


@pytest.mark.parametrize("kind", [_Keeping, _Assigning])
def test_a_module_may_keep_what_it_is_given(kind):
    """It is memory of its own: neither the slot's next step nor its end changes it."""
    saved = torch.nn.Linear(30, 30)
    buffer = _snapshot({"model": saved})
    live = kind(30, 30)
    _load(buffer, {"model": live}, 2)
    buffer[:] = bytes(len(buffer))
    kept = live.kept if kind is _Keeping else [live.weight, live.bias]
    assert torch.equal(kept[0], saved.weight)
    assert torch.equal(kept[1], saved.bias)
    assert torch.equal(live.weight, saved.weight)
