# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""An optimizer's parameters by number, in a state dict that it loads sooner."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class _Numbers(list[int]):
    """A group's parameters, by number. Torch looks each state's up in it: n times n steps."""

    def __init__(self, numbers: Iterable[int]) -> None:
        super().__init__(numbers)
        self._known = frozenset(self)

    def __contains__(self, number: object) -> bool:
        return number in self._known

    def __deepcopy__(self, _: object) -> _Numbers:
        return _Numbers(self)


def found_sooner(optimizer: torch.optim.Optimizer, given: Any) -> Any:
    """A state dict whose parameters are looked up at once, for who looks and keeps none of it."""
    stock = type(optimizer).load_state_dict is torch.optim.Optimizer.load_state_dict
    hooks = getattr(optimizer, "_optimizer_load_state_dict_pre_hooks", True)
    if stock and not hooks:
        for group in given["param_groups"]:
            group["params"] = _Numbers(group["params"])
    return given
