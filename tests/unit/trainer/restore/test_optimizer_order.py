# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""An optimizer that is given the same parameters in another order: moments follow the names."""

from __future__ import annotations

import contextlib
import mmap

import pytest
import torch
from torch.distributed.fsdp import fully_shard

from rover_kf import errors
from rover_kf.checkpoint.format import snapshot
from rover_kf.checkpoint.format.tensor_layout import read_tensor_layout
from rover_kf.trainer.restore import load
from rover_kf.trainer.staging import copy_threads
from rover_kf.trainer.state import flatten, flatten_cache, tensor_views
from tests.support.pods import trainer_slot
from tests.support.training.single_process_mesh import own_mesh

pytestmark = pytest.mark.torch

NAMES = ("a", "b", "c")


def _model() -> torch.nn.ModuleDict:
    return torch.nn.ModuleDict({name: torch.nn.Linear(3, 3, bias=False) for name in NAMES})


def _groups(model: torch.nn.ModuleDict, order: str) -> list[dict[str, object]]:
    """One group for each word of the order."""
    return [
        {"params": [(f"{name}.weight", model[name].weight) for name in word]}
        for word in order.split()
    ]


def _unnamed(groups):
    return [{"params": [parameter for _, parameter in group["params"]]} for group in groups]


def _saved(order: str = "abc", *, with_model: bool = True, named: bool = False) -> mmap.mmap:
    """Of each parameter the momentum is the number of its name in the alphabet."""
    model = _model()
    groups = _groups(model, order)
    optimizer = torch.optim.SGD(groups if named else _unnamed(groups), lr=0.1, momentum=0.9)
    for number, name in enumerate(NAMES, 1):
        model[name].weight.grad = torch.full((3, 3), float(number))
    optimizer.step()
    state = {"model": model, "optimizer": optimizer} if with_model else {"optimizer": optimizer}
    return trainer_slot.written(flatten.flatten(state))


def _restored(
    buffer: mmap.mmap, order: str, *, with_model: bool = True, named: bool = False, kind=None
):
    model = _model()
    groups = _groups(model, order)
    made = (kind or torch.optim.SGD)(groups if named else _unnamed(groups), lr=0.1, momentum=0.9)
    state = {"model": model, "optimizer": made} if with_model else {"optimizer": made}
    trainer_slot.restored(buffer, state)
    return {
        name: made.state[model[name].weight]["momentum_buffer"].unique().tolist() for name in NAMES
    }, made


RIGHT = {"a": [1.0], "b": [2.0], "c": [3.0]}


@pytest.mark.parametrize(("saved", "live"), [("abc", "cab"), ("ab c", "ba c"), ("abc", "abc")])
@pytest.mark.parametrize("named", [False, True])
def test_moments_follow_the_names(saved, live, named):
    """Also where the optimizer knows names itself, which it keeps in its own order."""
    found, made = _restored(_saved(saved, named=named), live, named=named)
    assert found == RIGHT
    if named:
        kept = [name for group in made.param_groups for name in group["param_names"]]
        assert kept == [f"{name}.weight" for name in live if name != " "]


def test_names_of_the_optimizer_serve_where_the_state_has_no_module():
    """Torch keeps them in the groups."""
    found, _ = _restored(_saved(named=True, with_model=False), "bca", named=True, with_model=False)
    assert found == RIGHT


@pytest.mark.parametrize("live", ["ba c", "c ab", "ac b"])
def test_other_groups_are_refused_with_the_names(live):
    """A group has its own learning rate; where its parameters are others, nothing is sure."""
    with pytest.raises(
        errors.IncompatibleState, match=r"state\['optimizer'\], SGD, .*\['model'\]\.[abc]\.weight"
    ):
        _restored(_saved("a bc"), live)


def test_dtensors_in_another_order_are_refused():
    """What came of them was asked for by the live numbers."""
    with own_mesh() as mesh:

        def made(order: str) -> dict[str, object]:
            model = _model()
            for name in NAMES:
                fully_shard(model[name], mesh=mesh)
            parameters = [model[name].weight for name in order]
            return {"model": model, "optimizer": torch.optim.SGD(parameters, lr=0.1, momentum=0.9)}

        buffer, live = trainer_slot.written(flatten.flatten(made("abc"))), made("bac")
        found = snapshot.read(memoryview(buffer))
        tensors = tensor_views.tensor_views(buffer, found.tensors)
        dtensors = flatten_cache.live_dtensors(live, replicated=True)
        pieces = read_tensor_layout(found).shards
        with (
            contextlib.closing(copy_threads.CopyThreads(0)) as threads,
            pytest.raises(errors.IncompatibleState, match="in the order"),
        ):
            load.StateLoader(live, found.metadata, tensors, dtensors, pieces, threads=threads)


def test_an_optimizer_that_loads_in_its_own_way_is_refused():
    """Whether it goes by numbers is not known."""

    class Own(torch.optim.SGD):
        def load_state_dict(self, state_dict):
            super().load_state_dict(state_dict)

    with pytest.raises(errors.IncompatibleState, match="in the order"):
        _restored(_saved(), "bac", kind=Own)
    assert _restored(_saved(), "abc", kind=Own)[0] == RIGHT


def test_parameters_without_names_go_by_their_numbers():
    """As torch does: nothing better is known of them."""
    found, _ = _restored(_saved(with_model=False), "bca", with_model=False)
    assert found == {"b": [1.0], "c": [2.0], "a": [3.0]}


def test_a_state_without_the_module_goes_by_numbers():
    """No saved name is a live one: nothing better than the numbers is known."""
    model, wrapped = _model(), _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for number, name in enumerate(NAMES, 1):
        model[name].weight.grad = torch.full((3, 3), float(number))
    optimizer.step()
    buffer = trainer_slot.written(flatten.flatten({"optimizer": optimizer, "old": model}))
    live = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
    trainer_slot.restored(buffer, {"optimizer": live})
    moments = [live.state[wrapped[name].weight]["momentum_buffer"][0, 0] for name in NAMES]
    assert moments == [1.0, 2.0, 3.0]
