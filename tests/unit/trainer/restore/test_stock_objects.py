# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Every scheduler and optimizer of torch is saved, and goes on as if nothing had been."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import lr_scheduler

from rover_kf import errors
from rover_kf.checkpoint.format import snapshot
from rover_kf.trainer.restore import load
from rover_kf.trainer.staging import copy_threads
from rover_kf.trainer.state import tensor_views
from rover_kf.trainer.state.flatten_cache import FlattenCache, live_dtensors
from tests.support.pods import trainer_slot
from tests.support.training.single_process_mesh import own_group

pytestmark = pytest.mark.torch

ARGUMENTS = {
    "LambdaLR": {"lr_lambda": lambda epoch: 0.9**epoch},
    "MultiplicativeLR": {"lr_lambda": lambda _: 0.9},
    "StepLR": {"step_size": 2},
    "MultiStepLR": {"milestones": [2, 5, 5]},
    "CosineAnnealingLR": {"T_max": 9},
    "ExponentialLR": {"gamma": 0.9},
    "CyclicLR": {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 3},
    "OneCycleLR": {"max_lr": 0.1, "total_steps": 20},
    "CosineAnnealingWarmRestarts": {"T_0": 3},
}
STOCK = {
    name
    for name, kind in vars(lr_scheduler).items()
    if isinstance(kind, type) and issubclass(kind, lr_scheduler.LRScheduler)
} - {"LRScheduler", "_LRScheduler"}
STEPS = 4


def _restored(state: dict[str, object], live: dict[str, object]) -> None:
    """By way of a snapshot, taken at the third of several saves."""
    recall = FlattenCache()
    for _ in range(2):
        recall.flatten(state)
    buffer = trainer_slot.written(recall.flatten(state))
    assert recall.generation == 1
    found = snapshot.read(memoryview(buffer))
    tensors = tensor_views.tensor_views(buffer, found.tensors)
    with contextlib.closing(copy_threads.CopyThreads(0)) as helping:
        load.StateLoader(live, found.metadata, tensors, threads=helping).finish()


def _scheduled(name: str) -> dict[str, object]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.05, momentum=0.9)
    if name in ("SequentialLR", "ChainedScheduler"):
        several = [lr_scheduler.MultiStepLR(optimizer, [1, 2]), lr_scheduler.StepLR(optimizer, 2)]
        if name == "ChainedScheduler":
            return {"schedule": lr_scheduler.ChainedScheduler(several), "optimizer": optimizer}
        kind = lr_scheduler.SequentialLR(optimizer, several, milestones=[3])
        return {"schedule": kind, "optimizer": optimizer}
    kind = getattr(lr_scheduler, name)
    return {"schedule": kind(optimizer, **ARGUMENTS.get(name, {})), "optimizer": optimizer}


def _rates(state: dict[str, object], name: str) -> list[float]:
    found = []
    for _ in range(STEPS):
        state["optimizer"].step()
        state["schedule"].step(*([1.0] if name == "ReduceLROnPlateau" else []))
        found.append(state["optimizer"].param_groups[0]["lr"])
    return found


@pytest.mark.parametrize("name", sorted(STOCK))
def test_a_scheduler_goes_on_where_it_was(name):
    """With the rates that it would have given."""
    state, live = _scheduled(name), _scheduled(name)
    _rates(state, name)
    _restored(state, live)
    assert vars(live["schedule"]).keys() == vars(state["schedule"]).keys()
    assert type(getattr(live["schedule"], "milestones", None)) is type(
        getattr(state["schedule"], "milestones", None)
    )
    assert _rates(live, name) == _rates(state, name)


OPTIMIZERS = sorted(
    name
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and name != "Optimizer"
)


def _optimized(name: str) -> dict[str, object]:
    parameter = torch.nn.Parameter(torch.linspace(0.5, 1.5, 9).view(3, 3))
    return {"p": parameter, "optimizer": getattr(torch.optim, name)([parameter], lr=0.1)}


def _step(state: dict[str, object], name: str) -> None:
    parameter = state["p"]

    def loss() -> torch.Tensor:
        found = parameter.square().sum()
        parameter.grad = 2 * parameter.detach()
        if name == "SparseAdam":
            parameter.grad = parameter.grad.to_sparse()
        return found

    loss()
    state["optimizer"].step(loss)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_goes_on_where_it_was(name):
    """To the same weights, bit for bit."""
    state, live = _optimized(name), _optimized(name)
    for _ in range(3):
        _step(state, name)
    _restored(state, live)
    for _ in range(2):
        _step(state, name)
        _step(live, name)
    assert torch.equal(state["p"], live["p"])


@pytest.mark.parametrize("where", [lambda one: one, lambda one: [one]], ids=["top", "list"])
def test_an_optimizer_whose_state_no_rank_has_is_refused(where):
    """Before anything is trained, with what to do in its place; torch's own error says to gather
    the state on one rank, and the others would wait for it."""
    with own_group():
        parameters = [torch.nn.Parameter(torch.ones(2))]
        optimizer = ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=0.1)
        state = {"optimizer": where(optimizer)}
        with pytest.raises(errors.UnsupportedState, match=r"fully_shard.*optimizer\.optim"):
            live_dtensors(state, replicated=True)
        with pytest.raises(errors.UnsupportedState, match="ZeroRedundancyOptimizer"):
            FlattenCache().flatten(state)


@pytest.mark.filterwarnings("ignore:FSDP is switching to use `NO_SHARD`")
@pytest.mark.parametrize("named", [True, False])
def test_an_optimizer_of_fsdps_version_1_is_refused(named):
    """Each rank has other rows, and to storage they went as shares of one tensor. Where each rank
    has a state of its own that is right."""
    with own_group():
        model = FullyShardedDataParallel(
            torch.nn.Linear(2, 2), use_orig_params=named, device_id=torch.device("cpu")
        )
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
        state = {"optimizer": optimizer}
        with pytest.raises(errors.UnsupportedState, match=r"'optimizer'.*rover_kf\.trainer\.dcp"):
            FlattenCache().flatten(state)
        FlattenCache(replicated=False).flatten(state)


class _Packed(torch.Tensor):
    """A tensor made of others, as torchao's moments of eight bits are."""

    @staticmethod
    def __new__(cls, codes, scale):
        made = torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scale.dtype)
        made.codes, made.scale = codes, scale
        return made

    @classmethod
    def __torch_dispatch__(cls, *_):
        return NotImplemented

    def __tensor_flatten__(self):
        return ["codes", "scale"], None


def test_a_tensor_made_of_others_is_refused_with_what_to_do():
    """It has no local or full one to pass: the advice for a ShardedTensor helps nobody."""
    packed = _Packed(torch.zeros(4, dtype=torch.uint8), torch.ones(2))
    with pytest.raises(errors.UnsupportedState) as refused:
        FlattenCache().flatten({"moments": {"exp_avg": packed}})
    said = str(refused.value)
    assert said.startswith("state['moments']['exp_avg'] is a tensor of class _Packed; ")
    assert "in codes, scale; put an object in its owner's place whose state_dict" in said
    assert "local or full" not in said
