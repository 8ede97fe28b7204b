# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whatever a script does between save() and the next step: the step as it was, or an error that
tells, never a mixture; and the save after it has what is there then."""

from __future__ import annotations

import contextlib
import copy
import functools
import mmap
import pathlib
import threading

import pytest
import torch
from torch.distributed.fsdp import fully_shard

from rover_kf import errors
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.checkpoint.format import snapshot
from rover_kf.trainer import settings as trainer_settings
from rover_kf.trainer.checkpointer import Checkpointer
from rover_kf.trainer.rng_state import Generators
from rover_kf.trainer.staging import overlap
from rover_kf.trainer.staging.copy_threads import SharedWork
from rover_kf.trainer.state import flatten as states
from tests.support.pods import checkpoint_pod
from tests.support.training.single_process_mesh import own_mesh

pytestmark = pytest.mark.torch


def _fresh(seed: int = 1) -> dict[str, object]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 96), torch.nn.BatchNorm1d(96), torch.nn.Linear(96, 8)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    state = {"model": model, "optimizer": optimizer, "mean": torch.zeros(7), "n": [0]}
    _train(state)
    return state


def _train(state: dict[str, object]) -> None:
    state["optimizer"].zero_grad()
    state["model"](torch.randn(8, 64)).square().mean().backward()
    state["optimizer"].step()


def _whole(state: dict[str, object]) -> tuple[dict[str, bytes], str]:
    parts = states.flatten(state)
    tensors = {name: t.contiguous().numpy().tobytes() for name, t in parts.tensors.items()}
    return tensors, parts.metadata[snapshot.STATE_KEY]


class _Scene:
    """A training process with a checkpointer, and what its memory holds."""

    def __init__(self, pod: checkpoint_pod.Pod, checkpointer: Checkpointer) -> None:
        self._arena = Arena(pathlib.Path(pod.settings.volume_path) / "arena" / "0")
        self.checkpointer = checkpointer

    def sealed(self) -> tuple[int, tuple[dict[str, bytes], str]]:
        """The newest step, its tensors' bytes and its plain data."""
        seal = self._arena.sealed()[0]
        length = seal.length
        with self._arena.pin(seal) as pin, mmap.mmap(pin.descriptor, length, prot=1) as raw:
            data = bytes(raw)
        found = snapshot.read(data)
        tensors = {name: data[place.begin : place.end] for name, place in found.tensors.items()}
        return seal.state.step, (tensors, found.metadata[snapshot.STATE_KEY])

    @contextlib.contextmanager
    def held(self):
        """Everything is copied as late as it can be: when the next step waits for it."""
        go = threading.Event()
        self.checkpointer._stager._overlap._threads.submit(SharedWork([lambda: go.wait(60)]))
        try:
            yield
        finally:
            go.set()


@pytest.fixture
def scene(tmp_path):
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        settings = trainer_settings.read(pod.environment())
        with Checkpointer(settings=settings, overlap=True) as checkpointer:
            yield _Scene(pod, checkpointer)


def _replace_parameter(state: dict[str, object]) -> None:
    state["model"][0].weight = torch.nn.Parameter(torch.zeros(96, 64))


def _delete_module(state: dict[str, object]) -> None:
    del state["model"][2]
    state["model"].append(torch.nn.Linear(96, 8))


def _new_group(state: dict[str, object]) -> None:
    state["optimizer"].add_param_group({"params": [torch.nn.Parameter(torch.ones(5))]})


def _forward(state: dict[str, object]) -> None:
    state["model"](torch.randn(8, 64)).sum().backward()
    assert state["model"][1].num_batches_tracked == 3


def _hook(state: dict[str, object]) -> None:
    def doubled(_, given, prefix, *rest):
        del rest
        given[prefix + "0.bias"] = given[prefix + "0.bias"].detach() * 2
        return given

    state["model"]._register_state_dict_hook(doubled)


def _swap_optimizer(state: dict[str, object]) -> None:
    state["optimizer"] = torch.optim.SGD(state["model"].parameters(), lr=1.0, momentum=0.9)


def _load_optimizer(state: dict[str, object]) -> None:
    given = copy.deepcopy(state["optimizer"].state_dict())
    for kept in given["state"].values():
        kept["exp_avg"].fill_(9.0)
    state["optimizer"].load_state_dict(given)


def _plain_values(state: dict[str, object]) -> None:
    state["n"][0] += 1
    state["mean"] += 1
    state["optimizer"].param_groups[0]["lr"] = 0.5


WHOLE = {
    "nothing": lambda _: None,
    "a parameter is replaced": _replace_parameter,
    "a module is replaced": _delete_module,
    "a group comes": _new_group,
    "the forward changes buffers": _forward,
    "a hook of the state dict comes": _hook,
    "another optimizer steps": _swap_optimizer,
    "the optimizer loads a state": _load_optimizer,
    "the optimizer forgets its state": lambda state: state["optimizer"].state.clear(),
    "an entry goes": lambda state: state.pop("mean"),
    "gradients go": lambda state: state["model"].zero_grad(set_to_none=True),
    "plain values and tables change": _plain_values,
}


@pytest.mark.parametrize("change", WHOLE)
def test_the_step_is_sealed_as_it_was(scene, change):
    """And the next one as it is then, three times over: what is remembered is not believed."""
    state = _fresh()
    for step in (1, 3, 5):
        expected = _whole(state)
        with scene.held():
            scene.checkpointer.save(step, state)
            assert not scene.checkpointer._stager._overlap.is_done
            if step == 3:
                WHOLE[change](state)
            _train(state)
        assert scene.sealed() == (step, expected)
        expected = _whole(state)
        scene.checkpointer.save(step + 1, state)
        scene.checkpointer.finish()
        assert scene.sealed() == (step + 1, expected)


def _in_place(state: dict[str, object]) -> None:
    with torch.no_grad():
        state["model"][0].weight.mul_(2)


def _other_bytes(state: dict[str, object]) -> None:
    state["model"][0].weight.data = torch.zeros(96, 64)


def _other_shape(state: dict[str, object]) -> None:
    state["model"][0].weight.data = torch.zeros(1)


def _turned(state: dict[str, object]) -> None:
    weight = state["model"][0].weight
    weight.data = weight.data.view(64, 96)


def _moments(state: dict[str, object]) -> None:
    state["optimizer"].state[state["model"][0].weight]["exp_avg"].zero_()


SPOILT = {
    "a parameter changes in place": _in_place,
    "a parameter gets other bytes": _other_bytes,
    "a parameter gets another shape": _other_shape,
    "a parameter gets another shape where it is": _turned,
    "a parameter's moments change": _moments,
    "the module loads a state": lambda state: state["model"].load_state_dict(
        copy.deepcopy(state["model"].state_dict())
    ),
    "the module gets another type": lambda state: state["model"].double(),
}


@pytest.mark.parametrize("change", SPOILT)
def test_a_step_that_cannot_be_whole_is_told_and_not_sealed(scene, change):
    """The error names the step, and what was sealed before stays."""
    state = _fresh()
    expected = _whole(state)
    scene.checkpointer.save(1, state)
    scene.checkpointer.finish()
    with scene.held():
        scene.checkpointer.save(2, state)
        SPOILT[change](state)
        scene.checkpointer._stager._overlap.wait()
    with pytest.raises(errors.CheckpointError, match=r"step 2 is not saved: .*overlap=False"):
        scene.checkpointer.finish()
    assert scene.sealed() == (1, expected)
    expected = _whole(state)
    scene.checkpointer.save(3, state)
    scene.checkpointer.finish()
    assert scene.sealed() == (3, expected)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.LBFGS])
@pytest.mark.parametrize("named", [False, True])
def test_the_copy_goes_on_beside_what_a_closure_computes(scene, kind, named):
    """The loop gives forward and backward to the optimizer, as Lightning's does: it waits after
    them, before it changes anything, and what is sealed is the state of the save."""
    model = torch.nn.Linear(64, 96)
    state = {"model": model, "optimizer": kind(model.parameters(), lr=1e-2)}
    beside: list[bool] = []

    def closure() -> torch.Tensor:
        beside.append(scene.checkpointer._stager._overlap.is_done)
        state["optimizer"].zero_grad()
        loss = model(torch.ones(2, 64)).square().sum()
        loss.backward()
        return loss

    step = functools.partial(state["optimizer"].step, **({"closure": closure} if named else {}))
    for number in (1, 2, 3):
        expected = _whole(state)
        beside.clear()
        with scene.held():
            scene.checkpointer.save(number, state)
            loss = step() if named else step(closure)
        scene.checkpointer.finish()
        assert loss.item() > 0
        assert beside[0] is False
        assert scene.sealed() == (number, expected)
        assert _whole(state) != expected


def test_an_optimizer_of_another_house_waits_before_its_closure(scene):
    """It may change parameters before it calls it."""

    class Own(torch.optim.SGD):
        def step(self, closure=None):
            with torch.no_grad():
                for parameter in self.param_groups[0]["params"]:
                    parameter.mul_(2)
            return super().step(closure)

    model = torch.nn.Linear(64, 96)
    state = {"model": model, "optimizer": Own(model.parameters(), lr=1e-2)}
    for number in (1, 2):
        expected = _whole(state)
        with scene.held():
            scene.checkpointer.save(number, state)
            state["optimizer"].step(lambda: torch.zeros(()))
        scene.checkpointer.finish()
        assert scene.sealed() == (number, expected)


def test_a_spoilt_step_that_no_other_follows_is_an_error_at_the_end(tmp_path):
    """The last step of a training, whose script has not said that it is, and converts the model at
    once: nothing makes up for it."""
    state = _fresh()
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        settings = trainer_settings.read(pod.environment())
        checkpointer = Checkpointer(settings=settings, overlap=True)
        scene = _Scene(pod, checkpointer)
        for step in (1, 2):
            checkpointer.save(step, state)
            checkpointer.finish()
        with scene.held():
            checkpointer.save(3, state)
            with torch.no_grad():
                next(state["model"].parameters()).mul_(2)
        with pytest.raises(errors.CheckpointError, match="step 3 is not saved"):
            checkpointer.close()


@pytest.mark.parametrize("asked", [True, False])
def test_the_best_weights_may_be_loaded_after_the_last_step(tmp_path, asked):
    """It is whole when ``step`` returns, and the script ends well."""
    state = _fresh()
    with checkpoint_pod.pods(tmp_path, 1, checkpoint_every=1) as (pod,):
        settings = trainer_settings.read(pod.environment())
        with Checkpointer(settings=settings, overlap=asked) as checkpointer:
            scene = _Scene(pod, checkpointer)
            best = copy.deepcopy(state["model"].state_dict())
            checkpointer.step(1, state, total_steps=2)
            _train(state)
            expected = _whole(state)
            with scene.held():
                checkpointer.step(2, state, total_steps=2)
                state["model"].load_state_dict(best)
            checkpointer.finish()
            assert scene.sealed() == (2, expected)


def test_a_parameter_that_took_another_shape_where_it_was_is_saved_with_it(scene):
    """The save compares shapes, although the parameter has its bytes where it had them."""
    state = _fresh()
    for step in (1, 2, 3, 4):
        if step == 3:
            _turned(state)
        expected = _whole(state)
        scene.checkpointer.save(step, state)
        scene.checkpointer.finish()
        assert scene.sealed() == (step, expected)


def _mean_turned(state: dict[str, object]) -> None:
    state["mean"].data = state["mean"].data.view(7, 1)


def _mean_typed(state: dict[str, object]) -> None:
    state["mean"].data = state["mean"].data.view(torch.int32)


def _steps_turned(state: dict[str, object]) -> None:
    counted = state["model"][1].num_batches_tracked
    counted.data = counted.data.view(1)


@pytest.mark.parametrize("change", [_mean_turned, _mean_typed, _steps_turned])
def test_what_is_copied_at_once_may_take_another_shape_where_it_is(scene, change):
    """The save sees it before it copies a byte."""
    state = _fresh()
    for step in (1, 2, 3, 4):
        if step == 3:
            change(state)
        expected = _whole(state)
        scene.checkpointer.save(step, state)
        scene.checkpointer.finish()
        assert scene.sealed() == (step, expected)


def test_tensors_that_are_new_at_each_save_cost_no_look_at_the_others(scene, monkeypatch):
    """The states of random generators are."""
    state = _fresh()
    state["random"] = Generators()
    for step in (1, 2):
        scene.checkpointer.save(step, state)
        scene.checkpointer.finish()
    looked = []
    monkeypatch.setattr(overlap, "optimizer_only", lambda *_: looked.append("owned"))
    for step in (3, 4):
        expected = _whole(state)
        scene.checkpointer.save(step, state)
        scene.checkpointer.finish()
        assert scene.sealed() == (step, expected)
    assert not looked


def test_a_parameter_that_a_bare_tensor_becomes_is_copied_late_from_then_on(scene):
    """What an optimizer changes is known by its bytes, not by its name."""
    state = _fresh()
    for step in (1, 2):
        scene.checkpointer.save(step, state)
        scene.checkpointer.finish()
    state["mean"] = state["model"][0].bias.data
    for step in (3, 5):
        expected = _whole(state)
        with scene.held():
            scene.checkpointer.save(step, state)
            _train(state)
        assert scene.sealed() == (step, expected)


def test_a_tensor_without_bytes_is_refused_where_it_replaces_one_that_has_them(scene):
    """By its path."""
    state = _fresh()
    for step in (1, 2):
        scene.checkpointer.save(step, state)
        scene.checkpointer.finish()
    state["mean"] = state["mean"].to_sparse()
    with pytest.raises(errors.UnsupportedState, match=r"\['mean'\].*sparse"):
        scene.checkpointer.save(3, state)


def test_a_tensor_of_inference_is_saved_like_another(scene):
    """It has no counter of changes; averages of weights are made so."""
    state = _fresh()
    with torch.inference_mode():
        state["mean"] = torch.ones(7)
    for step in (1, 2, 3):
        expected = _whole(state)
        with scene.held():
            scene.checkpointer.save(step, state)
            _train(state)
        assert scene.sealed() == (step, expected)


@pytest.mark.parametrize("spoilt", [False, True])
def test_parts_of_sharded_tensors_are_copied_late_and_watched(scene, spoilt):
    """By FSDP2; nothing is named or encoded anew from save to save.

    Where a save fails, what stays is as it was when it was saved.
    """
    expected = {}
    with own_mesh() as mesh:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.Linear(96, 8))
        fully_shard(model, mesh=mesh)
        state = {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2)}
        _train(state)
        for step in (1, 2, 3):
            expected[step] = _whole(state)
            with scene.held():
                scene.checkpointer.save(step, state)
                assert not scene.checkpointer._stager._overlap.is_done
                _train(state)
            assert scene.sealed() == (step, expected[step])
        assert scene.checkpointer._stager._flatten_cache.generation == 1
        if spoilt:
            with scene.held():
                scene.checkpointer.save(4, state)
                with torch.no_grad():
                    state["model"][0].weight.to_local().mul_(2)
                scene.checkpointer._stager._overlap.wait()
            with pytest.raises(
                errors.CheckpointError, match=r"step 4 is not saved: model.0.weight"
            ):
                scene.checkpointer.finish()
            step, sealed = scene.sealed()
            assert sealed == expected[step]
