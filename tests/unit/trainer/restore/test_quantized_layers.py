# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A model on layers of four bits is saved and restored, though they do not take what they tell."""

from __future__ import annotations

import json
import types

import pytest
import torch

from rover_kf import errors
from rover_kf.trainer.state.flatten_cache import FlattenCache
from tests.support.pods import trainer_slot

pytestmark = pytest.mark.torch


class _Packed(torch.nn.Module):
    """As bitsandbytes' Linear4bit: its state dict tells how the weight was quantized, and its
    load_state_dict calls that unexpected."""

    def __init__(self, seed: int, kind: str = "nf4") -> None:
        super().__init__()
        made = torch.Generator().manual_seed(seed)
        packed = torch.randint(0, 256, (8, 1), dtype=torch.uint8, generator=made)
        self.weight = torch.nn.Parameter(packed, requires_grad=False)
        self.absmax, self.kind = torch.rand(2, generator=made), kind
        self.weight.quant_state = types.SimpleNamespace(offset=torch.rand((), generator=made))

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        offset = self.weight.quant_state.offset.item()
        rest = json.dumps({"quant_type": self.kind, "nested_offset": offset}).encode()
        told = {"absmax": self.absmax, "quant_map": torch.arange(16.0)}
        told |= {f"quant_state.bitsandbytes__{self.kind}": torch.tensor(list(rest)).byte()}
        for name, tensor in told.items():
            destination[f"{prefix}weight.{name}"] = tensor


def _model(seed: int, kind: str = "nf4") -> torch.nn.Module:
    return torch.nn.Sequential(_Packed(seed, kind), torch.nn.Linear(4, 2))


@pytest.mark.parametrize("compiled", [False, True])
def test_a_model_on_layers_of_four_bits_comes_back(compiled):
    """To the last bit, with how its weights were quantized; once more from what is saved then."""
    model, live = _model(1), _model(2)
    wanted = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert len(wanted) == 6
    for target in (live, _model(3)):
        buffer = trainer_slot.written(FlattenCache().flatten({"model": model}))
        wrapped = torch.compile(target, backend="eager") if compiled else target
        trainer_slot.restored(buffer, {"model": wrapped})
        found = target.state_dict()
        assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
        assert torch.equal(target[0].absmax, model[0].absmax)
        assert target[0].weight.quant_state.offset == model[0].weight.quant_state.offset
        model = target


@pytest.mark.parametrize("other", [_model(2, "fp4"), torch.nn.Sequential(torch.nn.Linear(1, 8))])
def test_one_that_is_quantized_otherwise_is_refused(other):
    """By the tensor that says so, and with what to do."""
    buffer = trainer_slot.written(FlattenCache().flatten({"model": _model(1)}))
    with pytest.raises(errors.IncompatibleState, match=r"\['0\.weight\..*not quantized so: build"):
        trainer_slot.restored(buffer, {"model": other})
