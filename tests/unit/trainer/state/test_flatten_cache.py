# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Taking the same state apart again gives what taking it apart anew gives."""

from __future__ import annotations

import collections
import gc
import math
import sys
import weakref

import numpy as np
import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard

from rover_kf import errors
from rover_kf.checkpoint.format import snapshot
from rover_kf.trainer.rng_state import Generators
from rover_kf.trainer.state import flatten as states
from rover_kf.trainer.state import outline
from rover_kf.trainer.state.flatten_cache import FlattenCache, live_dtensors
from tests.support.training.single_process_mesh import own_mesh

pytestmark = pytest.mark.torch


def _fresh() -> dict[str, object]:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
    optimizer = torch.optim.AdamW(model.parameters())
    return {
        "model": model,
        "optimizer": optimizer,
        "schedule": torch.optim.lr_scheduler.StepLR(optimizer, 3),
        "nested": {"a": [torch.ones(2), 1.5], "b": {}, 3: None},
        "empty": {},
        "ordered": collections.OrderedDict(x=torch.zeros(3)),
        "epoch": 0,
        "told": {
            "text": 'a "word" \\ and\n\x7f \u00e9 \U0001f600 \ud800',
            "bytes": b"\0\xff",
            "point": complex(-0.0, math.inf),
            "far": -math.inf,
            "list": [1, True, None, "x"],
            "counter": collections.Counter({5: 2, 2: 1}),
            "steps": {0: {"step": 1, "mean": torch.ones(2)}, 1: {"step": 1, "mean": torch.ones(2)}},
        },
    }


def _step(state: dict[str, object]) -> None:
    state["model"](torch.randn(4, 4)).sum().backward()
    state["optimizer"].step()
    state["schedule"].step()
    state["epoch"] += 1


def _same(recall: FlattenCache, state: dict[str, object]) -> None:
    expected, found = states.flatten(state), recall.flatten(state)
    assert dict(found.metadata) == dict(expected.metadata)
    layout = snapshot.plan(expected.entries(), expected.metadata)
    header = snapshot.header(layout, found.metadata, found.json_metadata)
    assert header == snapshot.header(layout, expected.metadata)
    assert list(found.tensors) == list(expected.tensors)
    for name, tensor in expected.tensors.items():
        assert found.tensors[name].data_ptr() == tensor.data_ptr()
        assert found.tensors[name].shape == tensor.shape


CHANGES = {
    "nothing": lambda _: None,
    "a step": _step,
    "a type of equal value": lambda state: state.update(epoch=True),
    "a float of equal value": lambda state: state.update(epoch=1.0),
    "a sign of zero": lambda state: state["nested"].update(z=-0.0),
    "a nan": lambda state: state["nested"].update(z=math.nan),
    "a key's type": lambda state: state["nested"].update({3.0: None}),
    "a new key": lambda state: state.update(more=torch.ones(3)),
    "a key less": lambda state: state.pop("nested"),
    "another order": lambda state: state.update(model=state.pop("model")),
    "another shape": lambda state: state["nested"].update(a=[torch.ones(3), 1.5]),
    "another type": lambda state: state["nested"].update(a=[torch.ones(2).half(), 1.5]),
    "another tensor": lambda state: state["nested"].update(a=[torch.ones(2), 1.5]),
    "a number for a tensor": lambda state: state["nested"].update(a=[2, 1.5]),
    "a group": lambda state: state["optimizer"].add_param_group(
        {"params": [torch.nn.Parameter(torch.ones(2))]}
    ),
    "another object": lambda state: state.update(_fresh()),
    "a text": lambda state: state["told"].update(text='"}],[{"T":"x"'),
    "a text for a number": lambda state: state["told"].update(far="-inf"),
    "bytes": lambda state: state["told"].update(bytes=b"\1"),
    "a complex number": lambda state: state["told"].update(point=complex(0.0, math.inf)),
    "a number of a list": lambda state: state["told"]["list"].__setitem__(0, 10**30),
    "a count": lambda state: state["told"]["counter"].update([5]),
    "another thing counted": lambda state: state["told"]["counter"].update([7]),
    "a dict for a counter": lambda state: state["told"].update(counter={5: 2, 2: 1}),
    "a type in a list": lambda state: state["told"].update(list=[True, True, None, "x"]),
    "a longer list": lambda state: state["told"]["list"].append(2.5),
    "numbers among tensors": lambda state: [
        one.update(step=one["step"] + 1) for one in state["told"]["steps"].values()
    ],
    "a float among tensors": lambda state: state["told"]["steps"][0].update(step=1.0),
    "names that meet": lambda state: state.update({"nested.a": [torch.zeros(1)]}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_it_is_what_taking_apart_anew_gives(change):
    """After any change, and after one more step."""
    state, recall = _fresh(), FlattenCache()
    state["nested"]["z"] = 0.0
    for _ in range(3):
        _step(state)
        _same(recall, state)
    assert recall._sections, "the state is remembered"
    CHANGES[change](state)
    for _ in range(2):
        _same(recall, state)
    _step(state) if isinstance(state["epoch"], int) else None
    _same(recall, state)


def _calls(recall: FlattenCache, state: dict[str, object]) -> int:
    """Functions of Python that taking apart calls."""
    counted = 0

    def count(_frame, event, _argument):
        nonlocal counted
        counted += event == "call"

    sys.setprofile(count)
    try:
        recall.flatten(state)
    finally:
        sys.setprofile(None)
    return counted


def test_a_learning_rate_costs_the_same_whatever_the_state():
    """Nothing is done again for each of its tensors."""
    costs = []
    for parameters in (5, 200):
        model = torch.nn.ParameterList(torch.ones(2) for _ in range(parameters))
        optimizer = torch.optim.AdamW(model.parameters())
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
        sum(parameter.sum() for parameter in model).backward()
        optimizer.step()
        state, recall = (
            {"model": model, "optimizer": optimizer, "schedule": schedule},
            FlattenCache(),
        )
        recall.flatten(state)
        known = _calls(recall, state)
        schedule.step()
        costs.append(_calls(recall, state) - known)
        _same(recall, state)
    few, many = costs
    assert 0 < many <= few + 10


def test_a_learning_rate_of_numpys_is_no_new_start():
    """A lambda that calls numpy makes one, and another one at each step."""
    state = _fresh()
    schedule = torch.optim.lr_scheduler.LambdaLR(state["optimizer"], lambda n: np.cos(n / 100))
    state["schedule"], recall = schedule, FlattenCache()
    state["seen"] = [np.int64(1), {"share": np.float32(0.1)}, np.bool_(True)]  # noqa: FBT003 - numpy's
    _step(state)
    _same(recall, state)
    known = recall.generation
    for _ in range(2):
        _step(state)
        state["seen"][0] += 1
        _same(recall, state)
    assert type(state["optimizer"].param_groups[0]["lr"]) is np.float64
    assert recall._sections, "the state is remembered"
    assert recall.generation == known


def test_what_cannot_be_stored_is_refused_as_ever():
    """Also when it comes into a state that is known."""
    state, recall = _fresh(), FlattenCache()
    recall.flatten(state)
    state["nested"]["bad"] = object()
    with pytest.raises(errors.UnsupportedState, match=r"\['nested'\]\['bad'\]"):
        recall.flatten(state)


def test_given_up_tensors_are_freed():
    """A remembered state holds no memory."""
    state, recall = {"t": torch.ones(10)}, FlattenCache()
    for _ in range(2):
        recall.flatten(state)
    watched = weakref.ref(state["t"])
    del state["t"]
    gc.collect()
    assert watched() is None


def test_tensors_that_are_made_anew_at_each_look_keep_nothing_from_being_remembered():
    """The states of random generators: what is given is what they are now."""
    state, recall = {**_fresh(), "random": Generators()}, FlattenCache()
    for _ in range(3):
        expected = torch.get_rng_state()
        found = recall.flatten(state)
        assert torch.equal(found.tensors["random.torch"], expected)
        assert recall.generation == 1
        torch.randn(3)


def _optimizer_of(used: list[int], groups: list[list[int]]) -> torch.optim.Optimizer:
    """With a state for some of its parameters, in the order in which they were first used."""
    parameters = [torch.nn.Parameter(torch.ones(index + 1)) for index in range(4)]
    optimizer = torch.optim.AdamW([{"params": [parameters[i] for i in group]} for group in groups])
    for index in used:
        optimizer.zero_grad()
        parameters[index].sum().backward()
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("used", [[0, 1, 2, 3], [3, 1], [2, 0, 3, 1], []])
@pytest.mark.parametrize("groups", [[[0, 1, 2, 3]], [[2, 0], [3, 1]]])
def test_an_optimizer_numbers_its_parameters_by_its_groups(used, groups):
    """Whatever the order in which they came to have a state, and whether all have one."""
    state, recall = {"optimizer": _optimizer_of(used, groups)}, FlattenCache()
    for _ in range(3):
        _same(recall, state)
    assert recall.generation == 1


def test_an_optimizer_that_has_a_parameter_twice():
    """Torch warns of it and numbers it once; its own state dict is asked."""
    parameter = torch.nn.Parameter(torch.ones(2))
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer = torch.optim.AdamW([parameter, parameter])
    parameter.sum().backward()
    optimizer.step()
    state, recall = {"optimizer": optimizer}, FlattenCache()
    for _ in range(3):
        _same(recall, state)


@pytest.fixture
def mesh():
    with own_mesh() as found:
        yield found


def _placed(mesh, placement, size: int = 4) -> torch.Tensor:
    return DTensor.from_local(torch.ones(size, 3), mesh, [placement])


LAYOUTS = {
    "nothing": lambda *_: None,
    "a step": lambda state, _: _whole_step(state),
    "another placement": lambda state, mesh: state.update(table=_placed(mesh, Replicate())),
    "another axis": lambda state, mesh: state.update(table=_placed(mesh, Shard(1))),
    "another shape": lambda state, mesh: state.update(table=_placed(mesh, Shard(0), 5)),
    "another part": lambda state, mesh: state.update(table=_placed(mesh, Shard(0))),
    "a plain tensor": lambda state, _: state.update(table=torch.ones(4, 3)),
    "a sharded one for a plain one": lambda state, mesh: state.update(n=_placed(mesh, Shard(0), 1)),
}


def _whole_step(state: dict[str, object]) -> None:
    state["model"](torch.ones(2, 3)).sum().backward()
    state["optimizer"].step()
    state["optimizer"].zero_grad()


@pytest.mark.parametrize("change", LAYOUTS)
def test_sharded_tensors_are_remembered_with_their_layouts(mesh, change):
    """Whatever another layout changes, the parts' bytes may be the same."""
    model = fully_shard(torch.nn.Linear(3, 2), mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    table = _placed(mesh, Shard(0))
    state = {"model": model, "optimizer": optimizer, "table": table, "n": torch.ones(1, 3)}
    _whole_step(state)
    recall = FlattenCache()
    for _ in range(3):
        found, expected = recall.flatten(state), states.flatten(state)
        assert recall.generation == 1
        assert (found.dtensors, found.is_sharded) == (expected.dtensors, True)
        _same(recall, state)
    LAYOUTS[change](state, mesh)
    for _ in range(2):
        found, expected = recall.flatten(state), states.flatten(state)
        assert found.dtensors == expected.dtensors
        assert dict(found.metadata) == dict(expected.metadata)
        _same(recall, state)
    assert live_dtensors(state, replicated=True) == expected.dtensors


def test_new_tensors_of_a_type_that_torch_cannot_compare_are_taken_as_they_are():
    """They are not remembered."""

    class Table:
        def state_dict(self):
            return {"table": torch.zeros(4, dtype=torch.uint8).view(torch.uint4)}

        def load_state_dict(self, state_dict):
            del state_dict

    state, recall = {"table": Table()}, FlattenCache()
    for _ in range(2):
        assert list(recall.flatten(state).tensors) == ["table.table"]


@pytest.mark.parametrize("kind", ["AdamW", "SGD", "LBFGS", "Adafactor", "SparseAdam"])
def test_an_optimizer_is_seen_as_its_state_dict(kind):
    """Without asking it for one."""
    one, other = torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)
    optimizer = getattr(torch.optim, kind)([*one.parameters(), *other.parameters()])
    if kind != "LBFGS":  # it takes one group only
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], "lr": 0.5})
    for _ in range(2):
        assert outline._inner(optimizer) == optimizer.state_dict()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.ones_like(parameter)
                parameter.grad = (
                    parameter.grad.to_sparse() if kind == "SparseAdam" else parameter.grad
                )
        optimizer.step(lambda: torch.tensor(1.0))


def test_an_optimizer_that_has_more_to_say_is_asked():
    """Hooks, states of what is no parameter, and classes with a state dict of their own."""

    class Own(torch.optim.SGD):
        def state_dict(self):
            return {"own": 1}

    parameter = torch.nn.Parameter(torch.ones(2))
    hooked, strange = (torch.optim.SGD([parameter], lr=0.1) for _ in range(2))
    hooked.register_state_dict_post_hook(lambda *_: {"hooked": 1})
    strange.state["global"]["count"] = 3
    assert outline._inner(Own([parameter], lr=0.1)) == {"own": 1}
    assert outline._inner(hooked) == {"hooked": 1}
    assert outline._inner(strange)["state"] == {"global": {"count": 3}}
