# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Layers of four bits (bitsandbytes): what their state dict has and their loading does not take.

Beside a packed weight stands how it was quantized: ``weight.absmax``, ``weight.quant_map``, … and,
last, what is no tensor as one (``weight.quant_state.bitsandbytes__nf4``). ``load_state_dict`` calls
these unexpected, also in the model that they are of: a QLoRA could be saved, and not restored. They
are told by their names: the library is not imported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from rover_kf import errors

_LAST = ".quant_state.bitsandbytes__"


def load_quant_state(state_dict: Any, module: torch.nn.Module, path: str) -> None:
    """Write what stands beside packed weights into a module's own, and take it out.

    Args:
        state_dict: what load_state_dict is going to be called with.
        module: that is going to load it.
        path: of it in the state.

    Raises:
        IncompatibleState: the module's weights are not packed, or were quantized otherwise.
    """
    beside = _quant_state_names(state_dict) if isinstance(state_dict, Mapping) else []
    if not beside:
        return
    saved = {name: state_dict.pop(name) for name in beside}
    live, weights = module.state_dict(), dict(module.named_parameters(remove_duplicate=False))
    for name, tensor in saved.items():
        if name in live and live[name].shape == tensor.shape:
            live[name].copy_(tensor)
        if _LAST in name:
            _load_offset(tensor, weights.get(name.partition(_LAST)[0]))
    told = module.state_dict()  # some of it is made at each look: that has to be the same already
    for name, tensor in saved.items():
        if name not in told or not torch.equal(told[name].cpu(), tensor.cpu()):
            raise errors.IncompatibleState(
                f"state{path}[{name!r}] says how a layer of four bits was quantized, and the live "
                "one is not quantized so: build the model as it was, on its device and with the "
                "same settings, before restore. Or start this one as another job to begin anew"
            )


def has_quant_state(state_dict: Mapping[Any, Any]) -> bool:
    """Whether it has what load_state_dict does not take as it is."""
    return bool(_quant_state_names(state_dict))


def _load_offset(packed: torch.Tensor, weight: torch.Tensor | None) -> None:
    """The one number that is no tensor: a mean, which another device may round otherwise."""
    offset = getattr(getattr(weight, "quant_state", None), "offset", None)
    if isinstance(offset, torch.Tensor):
        told = json.loads(bytes(packed.tolist()))
        offset.fill_(told.get("nested_offset", 0.0))


def _quant_state_names(given: Mapping[Any, Any]) -> list[str]:
    names = [name for name in given if isinstance(name, str)]
    weights = {name.partition(_LAST)[0] for name in names if _LAST in name}
    if not weights:
        return []
    return [name for name in names if _LAST in name or name.rpartition(".")[0] in weights]
