# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""An optimizer's parameters by number, in a state dict that it loads sooner."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class _IndexList(list[int]):
    """A group's parameters, by number. Torch looks each state's up in it: n times n steps."""

    def __init__(self, numbers: Iterable[int]) -> None:
        super().__init__(numbers)
        self._members = frozenset(self)

    def __contains__(self, number: object) -> bool:
        return number in self._members

    def __deepcopy__(self, _: object) -> _IndexList:
        return _IndexList(self)


def index_parameters(optimizer: torch.optim.Optimizer, state_dict: Any) -> Any:
    """A state dict whose parameters are looked up at once, for who looks and keeps none of it."""
    stock = type(optimizer).load_state_dict is torch.optim.Optimizer.load_state_dict
    hooks = getattr(optimizer, "_optimizer_load_state_dict_pre_hooks", True)
    if stock and not hooks:
        for group in state_dict["param_groups"]:
            group["params"] = _IndexList(group["params"])
    return state_dict
