# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Restored values: made by several threads, in memory of their own, the way each module wants."""

from __future__ import annotations

import collections
import mmap

import pytest
import torch

from rover_kf import errors
from rover_kf.trainer.state import flatten
from tests.support.pods import trainer_slot

pytestmark = pytest.mark.torch


class _Doubling(torch.nn.Linear):
    """Loads twice what it is given, as modules do that change a format."""

    def _load_from_state_dict(self, state_dict, prefix, *rest):
        state_dict[prefix + "weight"] = state_dict[prefix + "weight"] * 2
        super()._load_from_state_dict(state_dict, prefix, *rest)


class _Asked(torch.nn.Linear):
    """Keeps what its load_state_dict was given."""

    def load_state_dict(self, state_dict, *rest, **named):
        self.given = {name: tensor.clone() for name, tensor in state_dict.items()}
        return super().load_state_dict(state_dict, *rest, **named)


class _Keeping(torch.nn.Linear):
    """Keeps the tensors that it is given, as metrics do that are modules."""

    def _load_from_state_dict(self, state_dict, prefix, *rest):
        self.kept = [state_dict[prefix + "weight"], state_dict[prefix + "bias"]]
        super()._load_from_state_dict(state_dict, prefix, *rest)


class _Assigning(torch.nn.Linear):
    """Takes what it is given in place of its parameters."""

    def load_state_dict(self, state_dict, **named):
        return super().load_state_dict(state_dict, **{**named, "assign": True})


def _snapshot(content: dict[str, object]) -> mmap.mmap:
    return trainer_slot.written(flatten.flatten(content))


def _trained(seed: int, steps: int) -> dict[str, object]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(1500, 1500), torch.nn.BatchNorm1d(1500), torch.nn.Linear(1500, 3)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.rand(4, 1500)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return {"model": model, "optimizer": optimizer, "kept": torch.rand(1 << 21), "note": [1, "a"]}


def _tensors(content: dict[str, object]) -> dict[str, torch.Tensor]:
    return dict(flatten.flatten(content).tensors)


@pytest.mark.parametrize("threads", [1, 3])
def test_values_come_back_in_memory_of_their_own(threads):
    """Large and small tensors, of a module, an optimizer and the dict itself; what becomes of the
    slot afterwards changes nothing."""
    saved = _trained(1, 2)
    buffer = _snapshot(saved)
    live = _trained(2, 0)
    parameter = live["model"][0].weight
    trainer_slot.restored(buffer, live, threads=threads)
    buffer[:] = bytes(len(buffer))
    assert live["model"][0].weight is parameter
    assert live["note"] == [1, "a"]
    found, expected = _tensors(live), _tensors(saved)
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_module_that_changes_what_it_loads_does_so_once():
    """Its own way of loading sees the saved values."""
    saved = torch.nn.Linear(30, 30)
    buffer = _snapshot({"model": torch.nn.Sequential(saved)})
    live = torch.nn.Sequential(_Doubling(30, 30))
    trainer_slot.restored(buffer, {"model": live}, threads=2)
    assert torch.equal(live[0].weight, saved.weight * 2)
    assert torch.equal(live[0].bias, saved.bias)


def test_a_load_hook_sees_the_saved_values():
    """Also the one that renames: its module's tensors are not touched ahead of it."""
    saved = torch.nn.Linear(30, 30)
    buffer = _snapshot({"model": saved})
    live = torch.nn.Linear(30, 30)
    before, seen = live.weight.detach().clone(), []

    def hook(_, state_dict, prefix, *rest):
        del rest
        seen.append((state_dict[prefix + "weight"].clone(), live.weight.detach().clone()))

    live.register_load_state_dict_pre_hook(hook)
    trainer_slot.restored(buffer, {"model": live}, threads=2)
    ((given, then),) = seen
    assert torch.equal(given, saved.weight)
    assert torch.equal(then, before)
    assert torch.equal(live.weight, saved.weight)


def test_an_overridden_load_state_dict_is_called_with_the_saved_values():
    """As by torch itself."""
    saved = torch.nn.Linear(30, 30)
    live = _Asked(30, 30)
    trainer_slot.restored(_snapshot({"model": saved}), {"model": live}, threads=2)
    assert torch.equal(live.given["weight"], saved.weight)
    assert torch.equal(live.weight, saved.weight)


@pytest.mark.parametrize("kind", [_Keeping, _Assigning])
def test_a_module_may_keep_what_it_is_given(kind):
    """It is memory of its own: neither the slot's next step nor its end changes it."""
    saved = torch.nn.Linear(30, 30)
    buffer = _snapshot({"model": saved})
    live = kind(30, 30)
    trainer_slot.restored(buffer, {"model": live}, threads=2)
    buffer[:] = bytes(len(buffer))
    kept = live.kept if kind is _Keeping else [live.weight, live.bias]
    assert torch.equal(kept[0], saved.weight)
    assert torch.equal(kept[1], saved.bias)
    assert torch.equal(live.weight, saved.weight)


def _in_a(kind: str, items: list[object]) -> object:
    named = dict(zip("gd", items, strict=True))
    return {
        "dict": named,
        "list": items,
        "tuple": tuple(items),
        "OrderedDict": collections.OrderedDict(named),
        "defaultdict": collections.defaultdict(dict, named),
        "tuples in a list": [(items[0],), (items[1],)],
    }[kind]


CONTAINERS = ["dict", "list", "tuple", "OrderedDict", "defaultdict", "tuples in a list"]


@pytest.mark.parametrize("kind", CONTAINERS)
def test_what_stands_in_a_container_is_loaded(kind):
    """Modules and tensors of two nets: the script's own objects, which stay in the state."""
    torch.manual_seed(1)
    saved = [torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)]
    nets = [torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)]
    weights = [torch.zeros(4, 4), torch.zeros(4, 4)]
    live = {"nets": _in_a(kind, nets), "kept": _in_a(kind, weights)}
    kept = _in_a(kind, [net.weight.detach() for net in saved])
    trainer_slot.restored(_snapshot({"nets": _in_a(kind, saved), "kept": kept}), live, threads=2)
    for before, net, weight in zip(saved, nets, weights, strict=True):
        assert torch.equal(net.weight, before.weight)
        assert torch.equal(weight, before.weight)
    expected = _in_a(kind, nets)
    assert live["nets"] == expected
    assert type(live["nets"]) is type(expected)
    with torch.no_grad():
        nets[1].weight.fill_(7)
    assert any(bool((one == 7).all()) for one in flatten.flatten(live).tensors.values())


@pytest.mark.parametrize(
    ("saved", "live", "told"),
    [
        (lambda net: [net, net], lambda net: [net], r"\['nets'\] is a list of 1 .*a list of 2"),
        (lambda net: [net], lambda net: (net,), r"\['nets'\] is a tuple of 1 .*a list of 1"),
        (lambda net: net, lambda net: [{"a": (net,)}], r"\['nets'\] is a list of 1 .*a dict"),
        (lambda _: [[], 5], lambda net: [[net], 5], r"\['nets'\]\[0\] is a list of 1 .*list of 0"),
        (lambda _: 3, lambda net: [net.weight], r"\['nets'\] is a list of 1 .*plain data"),
        (lambda _: 3, lambda net: net.weight, r"\['nets'\] is a Parameter, .*plain data"),
    ],
)
def test_another_form_than_the_saved_one_is_an_error(saved, live, told):
    """Not a net that stays at its random start."""
    buffer = _snapshot({"nets": saved(torch.nn.Linear(2, 2))})
    with pytest.raises(errors.CheckpointError, match=told):
        trainer_slot.restored(buffer, {"nets": live(torch.nn.Linear(2, 2))})


def test_a_container_that_the_checkpoint_lacks_is_an_error():
    """As a net that it lacks is."""
    with pytest.raises(errors.CheckpointError, match=r"state\['nets'\] is not in the checkpoint"):
        trainer_slot.restored(_snapshot({"a": 1}), {"a": 0, "nets": [(torch.nn.Linear(2, 2),)]})


def test_containers_of_plain_values_keep_what_they_can_do():
    """A defaultdict its default; an OrderedDict has the order and the keys of the saved one; a list
    and a Counter that the script has by a name of its own go on as parts of the state."""
    counts, recent = collections.defaultdict(int), collections.OrderedDict(a=0, b=0, c=0)
    history, seen = [], collections.Counter("b")
    saved = {
        "counts": collections.defaultdict(int, x=2),
        "recent": collections.OrderedDict(b=1, a=2),
        "history": [1, 2, 3],
        "pair": (1, (2, "x")),
        "seen": collections.Counter(a=2, c=0),
    }
    live = {"counts": counts, "recent": recent, "history": history, "pair": (0, (0, ""))}
    live["seen"] = seen
    trainer_slot.restored(_snapshot(saved), live)
    assert live["counts"] is counts
    counts["y"] += 1
    assert counts == {"x": 2, "y": 1}
    assert live["recent"] is recent
    assert [*recent.items()] == [("b", 1), ("a", 2)]
    assert live["history"] is history
    assert history == [1, 2, 3]
    assert live["seen"] is seen
    assert dict(seen) == {"a": 2, "c": 0}
    assert live["pair"] == (1, (2, "x"))


@pytest.mark.parametrize(
    "live",
    [
        torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16)),
        torch.zeros(3, dtype=torch.float64, requires_grad=True),
    ],
)
def test_a_parameter_of_another_type_takes_the_saved_values(live):
    """As a module's does: who refers to it sees them."""
    state = {"scale": live}
    trainer_slot.restored(_snapshot({"scale": torch.arange(3.0)}), state)
    assert state["scale"] is live
    assert live.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("live", "saved"),
    [
        (torch.tensor(0), torch.tensor(0.5)),
        (torch.zeros(1), torch.tensor([2**24 + 1])),
        (torch.zeros(1, dtype=torch.int32), torch.tensor([2**40])),
        (torch.tensor(0.0), torch.tensor(1 / 3, dtype=torch.float64)),
        (torch.zeros(1), torch.tensor(0.25)),
        (torch.zeros(0, 2), torch.rand(4, 2)),
        (torch.zeros(1, 1), torch.rand(8, 32)),
        (torch.ones(2).to(torch.complex64).conj(), torch.tensor([1 + 2j, 3 - 4j]).conj()),
        (torch.zeros(2), torch.tensor([1 + 2j, 3 - 4j]).conj().imag),
        (torch._neg_view(torch.ones(2)), torch.tensor([5.0, 6.0])),
    ],
)
def test_a_plain_tensor_comes_back_as_the_loop_had_put_it_there(live, saved):
    """Of whatever type and shape: nothing is rounded, cut or refused."""
    state = {"best": live, "pair": (live, [live])}
    trainer_slot.restored(_snapshot({"best": saved, "pair": (saved, [saved])}), state)
    for found in (state["best"], state["pair"][0], state["pair"][1][0]):
        assert (found.dtype, found.shape) == (saved.dtype, saved.shape)
        assert torch.equal(found, saved)


def test_a_parameter_of_another_shape_is_an_error():
    """With the path and both shapes."""
    state = {"w": torch.nn.Parameter(torch.zeros(2, 3))}
    with pytest.raises(errors.IncompatibleState, match=r"state\['w'\] .*\(2, 3\).*\(4, 3\)"):
        trainer_slot.restored(_snapshot({"w": torch.zeros(4, 3)}), state)


def test_what_is_restored_inside_inference_mode_can_be_trained():
    """Nothing that it made belongs to that mode: an optimizer's moments, tensors of the state."""
    saved, live = _trained(1, 2), _trained(2, 0)
    buffer = _snapshot(saved)
    with torch.inference_mode():
        trainer_slot.restored(buffer, live, threads=3)
    assert not any(tensor.is_inference() for tensor in _tensors(live).values())
    live["model"](torch.rand(4, 1500)).sum().backward()
    live["optimizer"].step()


def test_an_optimizer_that_casts_what_it_loads_inside_inference_mode_can_go_on():
    """As one does whose parameters are on another device than the checkpoint."""
    saved, parameter = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3).double())
    before = torch.optim.Adam([saved])
    saved.sum().backward()
    before.step()
    live = torch.optim.Adam([parameter])
    buffer = _snapshot({"optimizer": before})
    with torch.inference_mode():
        trainer_slot.restored(buffer, {"optimizer": live})
    parameter.sum().backward()
    live.step()
    assert live.state[parameter]["exp_avg"].dtype == torch.float64


def test_a_state_that_was_made_inside_inference_mode_is_restored_there():
    """Of a script that only predicts; several threads help, which are in no such mode."""
    saved = _trained(1, 2)
    buffer = _snapshot({"model": saved["model"], "kept": saved["kept"]})
    with torch.inference_mode():
        live = {"model": _trained(2, 0)["model"], "kept": torch.zeros(1 << 21)}
        trainer_slot.restored(buffer, live, threads=3)
    assert torch.equal(live["kept"], saved["kept"])
    assert torch.equal(live["model"][0].weight, saved["model"][0].weight)


def test_a_model_that_was_changed_is_told_as_such():
    """Layers more, fewer or of another width, a parameter group more: no restart helps."""
    saved = torch.nn.Sequential(torch.nn.Linear(2, 3))
    buffer = _snapshot({"model": saved, "optimizer": torch.optim.SGD(saved.parameters(), lr=0.1)})
    more = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 3))
    for model, said in (
        (more, r'Missing key\(s\) in state_dict: "1.weight"'),
        (torch.nn.Sequential(), "Unexpected key"),
        (torch.nn.Sequential(torch.nn.Linear(2, 4)), "size mismatch for 0.weight"),
    ):
        with pytest.raises(
            errors.IncompatibleState, match=rf"(?s)state\['model'\].*{said}.*another job"
        ):
            trainer_slot.restored(buffer, {"model": model})
    groups = [{"params": more[0].parameters()}, {"params": more[1].parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    with pytest.raises(
        errors.IncompatibleState, match=r"state\['optimizer'\], SGD, .*groups.*peek"
    ):
        trainer_slot.restored(buffer, {"optimizer": optimizer})


@pytest.mark.parametrize(
    ("saved", "live", "lacking"),
    [
        ("SGD", "AdamW", "betas"),
        ("AdamW", "SGD", "momentum"),
        ("AdamW", "Adafactor", "beta2_decay"),
    ],
)
def test_an_optimizer_of_another_class_is_told_as_such(saved, live, lacking):
    """Torch takes some of them, and its step fails then, at each restart."""
    trained = _optimizing(saved)
    buffer = _snapshot({"optimizer": trained})
    said = rf"state\['optimizer'\], {live}, .*{lacking}.*another class.*another job"
    with pytest.raises(errors.IncompatibleState, match=said):
        trainer_slot.restored(buffer, {"optimizer": _optimizing(live)})


def test_classes_of_optimizers_that_have_the_same_go_on():
    """Adam's state is AdamW's; and a user's own class may lack what it was made with."""

    class Own(torch.optim.SGD):
        def __init__(self, *given, **named):
            super().__init__(*given, **named)
            self.defaults["new"] = 1

    live = _optimizing("Adam")
    trainer_slot.restored(_snapshot({"optimizer": _optimizing("AdamW")}), {"optimizer": live})
    live.step()
    own = Own([torch.nn.Parameter(torch.ones(3))], lr=0.5)
    trainer_slot.restored(_snapshot({"optimizer": _optimizing("SGD")}), {"optimizer": own})
    assert own.param_groups[0]["lr"] == pytest.approx(0.1)


def _optimizing(name: str) -> torch.optim.Optimizer:
    parameter = torch.nn.Parameter(torch.ones(3))
    found = getattr(torch.optim, name)([parameter], lr=0.1)
    parameter.grad = torch.ones(3)
    found.step()
    return found


def test_other_errors_of_loading_stay_what_they_are():
    """A device that is full is no other script: a restart may help."""

    class Full(torch.nn.Linear):
        def load_state_dict(self, *_, **__):
            raise torch.OutOfMemoryError("CUDA out of memory")

    buffer = _snapshot({"model": torch.nn.Linear(2, 3)})
    with pytest.raises(torch.OutOfMemoryError):
        trainer_slot.restored(buffer, {"model": Full(2, 3)})
