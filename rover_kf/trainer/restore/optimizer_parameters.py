# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""An optimizer's parameters in a state dict: in the optimizer's order, and looked up at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from rover_kf import errors
from rover_kf.trainer.state.parameter_names import Names


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
    hooks = getattr(optimizer, "_optimizer_load_state_dict_pre_hooks", True)
    if loads_by_number(optimizer) and not hooks:
        for group in state_dict["param_groups"]:
            group["params"] = _IndexList(group["params"])
    return state_dict


def loads_by_number(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it loads as torch's optimizers do."""
    return type(optimizer).load_state_dict is torch.optim.Optimizer.load_state_dict


@dataclasses.dataclass(frozen=True, slots=True)
class ParameterOrder:
    """The names of optimizers' parameters, as saved and as in the live state.

    Args:
        saved: of the snapshot, by the optimizers' paths.
        live: of the live state, likewise.
        movable: whether a parameter's state may get another number. The boxes of DTensors were
            requested by the live numbers.
    """

    saved: Mapping[str, Names]
    live: Mapping[str, Names]
    movable: bool

    def restore(self, optimizer: torch.optim.Optimizer, state_dict: Any, path: str) -> None:
        """Bring a saved state dict into the live optimizer's order.

        Raises:
            IncompatibleState: the order differs, and the state cannot follow the names.
        """
        groups = state_dict.get("param_groups", ()) if isinstance(state_dict, dict) else ()
        candidates = (
            (self.saved.get(path, ()), self.live.get(path, ())),
            (_own_names(groups), _own_names(optimizer.param_groups)),
        )
        for saved, live in candidates:
            moved = _first_moved(saved, live)
            if moved is None:
                continue
            fits = [len(names) for names in saved] == [len(group["params"]) for group in groups]
            if not (fits and self.movable and loads_by_number(optimizer) and _alike(saved, live)):
                raise errors.IncompatibleState(
                    f"state{path}, {type(optimizer).__name__}, has {moved} as parameter "
                    f"{_flat(live).index(moved)}, which was parameter {_flat(saved).index(moved)} "
                    "when it was saved: its moments would be another parameter's. Give the "
                    "optimizer its parameters in the order, and in the groups, of the script that "
                    "saved them"
                )
            _reorder(groups, saved, live)
            return


def _own_names(groups: Iterable[Mapping[str, Any]]) -> Names:
    """Those that the script gave the optimizer; torch keeps them in its groups."""
    return tuple(
        tuple(group.get("param_names") or (None,) * len(group["params"])) for group in groups
    )


def _flat(names: Names) -> list[str | None]:
    return [name for group in names for name in group]


def _first_moved(saved: Names, live: Names) -> str | None:
    """A parameter that has another number than it was saved under; None: there is none."""
    numbers = {name: number for number, name in enumerate(_flat(saved))}
    return next(
        (
            name
            for number, name in enumerate(_flat(live))
            if name and numbers.get(name, number) != number
        ),
        None,
    )


def _alike(saved: Names, live: Names) -> bool:
    """Whether each group has the same parameters, each of them with a name of its own."""
    pairs = [(set(one), set(other)) for one, other in zip(saved, live, strict=False)]
    whole = len(_flat(saved)) == len(_flat(live)) == sum(len(one) for one, _ in pairs)
    return whole and None not in _flat(saved) and all(one == other for one, other in pairs)


def _reorder(groups: Any, saved: Names, live: Names) -> None:
    for group, before, now in zip(groups, saved, live, strict=True):
        at = [before.index(name) for name in now]
        for key in ("params", "param_names"):
            if group.get(key):
                group[key] = [group[key][index] for index in at]
