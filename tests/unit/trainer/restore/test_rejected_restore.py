# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A restore that is refused has changed nothing: a script may catch the error and begin anew."""

from __future__ import annotations

import pytest
import torch

from rover_kf import errors
from rover_kf.trainer.state import flatten
from tests.support.pods import trainer_slot

pytestmark = pytest.mark.torch


class _Net(torch.nn.Module):
    """A module of the script's own, with buffers of torch's modules."""

    def __init__(self, width: int, *, extra: bool = False) -> None:
        super().__init__()
        self.first = torch.nn.Linear(2, width)
        self.norm = torch.nn.BatchNorm1d(width)
        if extra:
            self.head = torch.nn.Linear(width, 1)


class _Linear(torch.nn.Linear):
    """Loads in the script's own way, which copies all the same."""

    def load_state_dict(self, state_dict, *rest, **named):
        return super().load_state_dict(state_dict, *rest, **named)


def _state(
    *, width: int = 3, extra: bool = False, groups: int = 1, kind: str = "SGD", value: float = 0.0
) -> dict[str, object]:
    """A first module that always fits, and others that may not."""
    fits, net = torch.nn.Linear(2, 2), _Net(width, extra=extra)
    parameters = [*net.parameters()]
    step = -(-len(parameters) // groups)
    parts = [{"params": parameters[at : at + step]} for at in range(0, len(parameters), step)]
    optimizer = getattr(torch.optim, kind)(parts, lr=0.1)
    with torch.no_grad():
        for parameter in (*fits.parameters(), *parameters):
            parameter.fill_(value)
    return {
        "fits": fits, "list": [1, value], "plain": torch.full((4,), value), "net": net,
        "optimizer": optimizer, "step": int(value),
    }  # fmt: skip


def _values(state: dict[str, object]) -> dict[str, object]:
    tensors = {name: t.clone() for name, t in flatten.flatten(state).tensors.items()}
    return {**tensors, "list": [*state["list"]], "step": state["step"]}


def _same(one: dict[str, object], other: dict[str, object]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
        for name, value in one.items()
    )


@pytest.mark.parametrize(
    "live",
    [
        {"width": 4},
        {"extra": True},
        {"groups": 2},
        {"kind": "AdamW"},
    ],
    ids=["shape", "layer", "groups", "class"],
)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_refused_restore_leaves_the_state_as_it_was(live, threads):
    """Whatever does not fit, and wherever it stands: modules, tensors, lists and plain values."""
    buffer = trainer_slot.written(flatten.flatten(_state(value=7.0)))
    state = _state(**live)
    before = _values(state)
    with pytest.raises(errors.IncompatibleState):
        trainer_slot.restored(buffer, state, threads=threads)
    assert _same(_values(state), before)
    fitting = _state()
    trainer_slot.restored(buffer, fitting, threads=threads)
    assert _same(_values(fitting), _values(_state(value=7.0)))


def test_a_module_less_is_refused_before_the_others_are_loaded():
    """The checkpoint has more than the live module takes."""
    buffer = trainer_slot.written(flatten.flatten(_state(extra=True, value=7.0)))
    state = _state()
    before = _values(state)
    with pytest.raises(errors.IncompatibleState, match="Unexpected key"):
        trainer_slot.restored(buffer, state)
    assert _same(_values(state), before)


@pytest.mark.parametrize("hook", [False, True])
def test_a_module_with_its_own_way_is_refused_before_the_others(hook):
    """It alone knows what fits: nothing else is loaded before it has taken its own."""
    buffer = trainer_slot.written(
        flatten.flatten({"fits": torch.nn.Linear(2, 2), "own": torch.nn.Linear(2, 2)})
    )
    fits, own = torch.nn.Linear(2, 2), (torch.nn.Linear if hook else _Linear)(2, 3)
    if hook:
        own.register_load_state_dict_pre_hook(lambda *_: None)
    before = fits.weight.detach().clone()
    with pytest.raises(errors.IncompatibleState, match="size mismatch"):
        trainer_slot.restored(buffer, {"fits": fits, "own": own})
    assert torch.equal(fits.weight, before)
