# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Taking the same state apart again gives what taking it apart anew gives."""

from __future__ import annotations

import collections
import gc
import math
import sys
import weakref

import pytest
import torch

from rover_kf import errors
from rover_kf.checkpoint import snapshot
from rover_kf.trainer import state as states
from rover_kf.trainer.recall import Recall

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
            "steps": {0: {"step": 1, "mean": torch.ones(2)}, 1: {"step": 1, "mean": torch.ones(2)}},
        },
    }


def _step(state: dict[str, object]) -> None:
    state["model"](torch.randn(4, 4)).sum().backward()
    state["optimizer"].step()
    state["schedule"].step()
    state["epoch"] += 1


def _same(recall: Recall, state: dict[str, object]) -> None:
    expected, found = states.take_apart(state), recall.take_apart(state)
    assert dict(found.metadata) == dict(expected.metadata)
    layout = snapshot.plan(expected.entries(), expected.metadata)
    header = snapshot.header(layout, found.metadata, found.written)
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
    state, recall = _fresh(), Recall()
    state["nested"]["z"] = 0.0
    for _ in range(3):
        _step(state)
        _same(recall, state)
    assert recall._known, "the state is remembered"
    CHANGES[change](state)
    for _ in range(2):
        _same(recall, state)
    _step(state) if isinstance(state["epoch"], int) else None
    _same(recall, state)


def _calls(recall: Recall, state: dict[str, object]) -> int:
    """Functions of Python that taking apart calls."""
    counted = 0

    def count(_frame, event, _argument):
        nonlocal counted
        counted += event == "call"

    sys.setprofile(count)
    try:
        recall.take_apart(state)
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
        state, recall = {"model": model, "optimizer": optimizer, "schedule": schedule}, Recall()
        recall.take_apart(state)
        known = _calls(recall, state)
        schedule.step()
        costs.append(_calls(recall, state) - known)
        _same(recall, state)
    few, many = costs
    assert 0 < many <= few + 10


def test_what_cannot_be_stored_is_refused_as_ever():
    """Also when it comes into a state that is known."""
    state, recall = _fresh(), Recall()
    recall.take_apart(state)
    state["nested"]["bad"] = object()
    with pytest.raises(errors.UnsupportedState, match=r"\['nested'\]\['bad'\]"):
        recall.take_apart(state)


def test_given_up_tensors_are_freed():
    """A remembered state holds no memory."""
    state, recall = {"t": torch.ones(10)}, Recall()
    for _ in range(2):
        recall.take_apart(state)
    watched = weakref.ref(state["t"])
    del state["t"]
    gc.collect()
    assert watched() is None
