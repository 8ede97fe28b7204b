# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Refuse what modules and optimizers would refuse, before any part of the live state is written.

A restore that fails half-way leaves a mixture: loaded weights beside a fresh optimizer. So what
torch's own loading checks is checked for all objects first. Only an object that seems not to fit is
loaded on trial, with copies that have no effect, for the reason in torch's own words.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from rover_kf.trainer.restore.compatibility import compatible
from rover_kf.trainer.restore.optimizer_parameters import loads_by_number
from rover_kf.trainer.restore.quantized_layers import has_quant_state


def check_module(
    module: torch.nn.Module, given: Any, copied: Mapping[str, torch.Tensor], path: str
) -> None:
    """Check names and shapes.

    Args:
        module: that is going to load it.
        given: what its load_state_dict is going to be called with.
        copied: the tensors of a module that does nothing but copy; none of one that does more. Of
            such a module only shapes are checked: it may take other names.
        path: of it in the state.

    Raises:
        IncompatibleState: it does not fit.
    """
    if not isinstance(given, Mapping) or has_quant_state(given):  # which is checked by its values
        return
    expected = copied or dict(module.named_parameters())
    fits = not copied or copied.keys() == given.keys()
    if fits and all(_has_shape(given.get(name), tensor) for name, tensor in expected.items()):
        return
    with _CopiesWithoutEffect(), torch.no_grad(), compatible(module, path):
        module.load_state_dict(given)


def _has_shape(saved: object, live: torch.Tensor) -> bool:
    if saved is live or not isinstance(saved, torch.Tensor) or torch.nn.parameter.is_lazy(live):
        return True
    return saved.shape == live.shape


class _CopiesWithoutEffect(TorchFunctionMode):
    """A mode in which ``Tensor.copy_``, by which modules take values, writes nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        return args[0] if func is torch.Tensor.copy_ else func(*args, **(kwargs or {}))


def check_optimizer(optimizer: torch.optim.Optimizer, given: Any, path: str) -> None:
    """Check the groups, which a stand-in of the same class loads without any state.

    An optimizer that loads in its own way is not checked: nothing is known of what it takes.

    Raises:
        IncompatibleState: they do not fit.
    """
    kind = type(optimizer)
    stock = loads_by_number(optimizer) and kind.__setstate__.__module__.startswith("torch.")
    hooks = getattr(optimizer, "_optimizer_load_state_dict_pre_hooks", True)
    if not stock or hooks or not isinstance(given, Mapping) or "param_groups" not in given:
        return
    stand_in: torch.optim.Optimizer = object.__new__(kind)
    stand_in.__dict__.update(optimizer.__dict__)
    stand_in._optimizer_load_state_dict_post_hooks = collections.OrderedDict()  # noqa: SLF001 - they are the optimizer's
    with compatible(stand_in, path):
        stand_in.load_state_dict({"state": {}, "param_groups": given["param_groups"]})
