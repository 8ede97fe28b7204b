# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Bucket layouts on their way from the modules of one process to those of the next.

A world of one rank rebuilds its buckets as any other; tests/faults/test_restart_bits.py has more.
"""

from __future__ import annotations

import contextlib
import gc

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from rover_kf import errors
from rover_kf.trainer.ddp import bucket_layout
from rover_kf.trainer.ddp.bucket_layout import BucketLayout
from rover_kf.trainer.ddp.tracker import BucketTracker

pytestmark = pytest.mark.torch

WIDTH = 16
BUCKET_MIB = 0.0015
"""One layer fills a bucket."""


class Reordered(nn.Module):
    """Layers that run in another order than they are defined in."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        for index in (1, 3, 0, 2):
            layer = self.layers[index]
            batch = layer(batch.to(layer.weight.dtype))
        return batch


@pytest.fixture(autouse=True)
def world():
    """A world of this process alone."""
    gc.collect()  # A tracker finds modules of the tests before it.
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def tracker():
    found = BucketTracker()
    found.start()
    with contextlib.closing(found):
        yield found


def _wrapped(**options: object) -> DistributedDataParallel:
    torch.manual_seed(1)
    return DistributedDataParallel(Reordered(), bucket_cap_mb=BUCKET_MIB, **options)


def _train(module: nn.Module, steps: int = 1) -> None:
    for _ in range(steps):
        module(torch.ones(2, WIDTH)).sum().backward()


def _buckets(module: DistributedDataParallel) -> list[list[str]]:
    """Names of each bucket's parameters, as the Reducer has them."""
    names = {id(each): name for name, each in module.module.named_parameters()}
    found = module.reducer._get_zeros_like_grad_buckets()
    return [[names[id(each)] for each in bucket.parameters()] for bucket in found]


def _rebuilt(**options: object) -> list[list[str]]:
    """The buckets of a module that was trained undisturbed."""
    module = _wrapped(**options)
    _train(module, 4)
    return _buckets(module)


def _settled(tracker: BucketTracker, module: nn.Module) -> dict[str, str]:
    """The metadata of a step that is saved now."""
    state = {"nets": [module]}
    tracker.settle(state)
    return dict(tracker.metadata(state))


def _saved(tracker: BucketTracker, **options: object) -> dict[str, str]:
    """The metadata after the first step of a module, which is gone."""
    module = _wrapped(**options)
    _train(module)
    return _settled(tracker, module)


def test_the_first_step_has_the_layout_of_the_second(tracker):
    module = _wrapped()
    initial = _buckets(module)
    assert _settled(tracker, module) == {}
    _train(module)
    (layout,) = bucket_layout.read(_settled(tracker, module))
    assert _buckets(module) == _rebuilt() != initial
    names = [name for name, _ in module.module.named_parameters()]
    assert [[names[i] for i in bucket] for bucket in layout.buckets] == _rebuilt()
    _train(module, 2)
    assert bucket_layout.read(_settled(tracker, module)) == (layout,)


def test_a_module_gets_the_layout_and_keeps_it(tracker):
    """It trains on, and saves the same layout."""
    saved = _saved(tracker)
    module = _wrapped()
    assert _buckets(module) != _rebuilt()
    tracker.restore(saved, {"model": module})
    assert _buckets(module) == _rebuilt()
    assert _settled(tracker, module) == saved
    _train(module, 3)
    assert _settled(tracker, module) == saved
    assert _buckets(module) == _rebuilt()


def test_each_type_has_buckets_of_its_own(tracker):
    """Parameters of two types in turn: each bucket is the same, in whatever order they are."""

    def mixed() -> DistributedDataParallel:
        network = Reordered()
        network.layers[0].double()
        network.layers[3].double()
        return DistributedDataParallel(network, bucket_cap_mb=BUCKET_MIB)

    first = mixed()
    _train(first)
    saved = _settled(tracker, first)
    module = mixed()
    tracker.restore(saved, {"model": module})
    assert sorted(_buckets(module)) == sorted(_buckets(first))


def test_gradients_are_those_of_a_new_module(tracker):
    """Each parameter gets its own gradient, by the new Reducer's other numbering."""
    saved = _saved(tracker)
    plain, module = _wrapped(), _wrapped()
    tracker.restore(saved, {"model": module})
    for each in (plain, module):
        _train(each, 2)
    for one, other in zip(plain.parameters(), module.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def test_a_module_that_was_built_before_the_tracker():
    module = _wrapped()
    tracker = BucketTracker()
    tracker.start()
    with contextlib.closing(tracker):
        _train(module)
        assert len(bucket_layout.read(_settled(tracker, module.module))) == 1


@pytest.mark.parametrize("compiled", [False, True])
@torch._dynamo.config.patch(optimize_ddp=False)  # It refuses small buckets.
def test_a_module_that_is_built_after_the_restore(tracker, compiled):
    """It gets the layout before its first pass with gradients, also when it is compiled."""
    expected = _rebuilt()
    tracker.restore(_saved(tracker), {})
    module = _wrapped()
    called = torch.compile(module, backend="eager") if compiled else module
    with torch.no_grad():
        called(torch.ones(2, WIDTH))
    assert _buckets(module) != expected
    called(torch.ones(2, WIDTH))
    assert _buckets(module) == expected
    assert not module._forward_pre_hooks


def test_a_second_restore_replaces_nothing(tracker):
    saved = _saved(tracker)
    module = _wrapped()
    tracker.restore(saved, {"model": module})
    reducer = module.reducer
    tracker.restore(saved, {"model": module})
    assert module.reducer is reducer


def test_modules_that_are_not_the_states_are_left_alone(tracker):
    """Some ranks may have collected what the script gave up: no collective may depend on it."""
    given_up, other = _wrapped(), _wrapped()
    module = DistributedDataParallel(given_up.module, bucket_cap_mb=BUCKET_MIB)
    for each in (given_up, other):
        _train(each)
    before = _buckets(given_up), _buckets(other)
    assert _settled(tracker, module.module) == {}
    assert (_buckets(given_up), _buckets(other)) == before
    _train(module)
    assert len(bucket_layout.read(_settled(tracker, module.module))) == 1


def test_another_tracker_finds_the_layout_that_was_given(tracker):
    """As of a second Checkpointer: torch's record has another numbering by then."""
    saved = _saved(tracker)
    module = _wrapped()
    tracker.restore(saved, {"model": module})
    _train(module, 3)
    other = BucketTracker()
    other.start()
    with contextlib.closing(other):
        assert _settled(other, module) == saved


def test_static_graph_and_a_hook_of_python_are_taken_over(tracker):
    saved = _saved(tracker)
    seen = []

    def hook(state, bucket):
        seen.append(bucket.index())
        return allreduce_hook(state, bucket)

    module = _wrapped(static_graph=True)
    module.register_comm_hook(None, hook)
    tracker.restore(saved, {"model": module})
    assert _buckets(module) == _rebuilt()
    _train(module, 3)
    assert len(seen) == 3 * len(_rebuilt())
    assert _buckets(module) == _rebuilt()


def test_a_hook_of_c_is_left_alone_with_a_warning(tracker, caplog):
    saved = _saved(tracker)
    module = _wrapped()
    module._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    reducer = module.reducer
    tracker.restore(saved, {"model": module})
    assert module.reducer is reducer
    assert "its communication hook is one of C++" in caplog.text


def test_a_torch_without_the_private_ways_trains_with_a_warning(tracker, caplog, monkeypatch):
    module = _wrapped()
    monkeypatch.delattr(DistributedDataParallel, "_build_debug_param_to_name_mapping")
    for _ in range(2):
        _train(module)
        assert _settled(tracker, module) == {}
    (told,) = [record.getMessage() for record in caplog.records if record.name == "rover_kf"]
    assert f"torch {torch.__version__} has no _build_debug_param_to_name_mapping" in told


def test_unused_parameters_keep_one_layout(tracker):
    assert _saved(tracker, find_unused_parameters=True) == {}
    module = _wrapped(find_unused_parameters=True)
    before = _buckets(module)
    _train(module, 3)
    assert _buckets(module) == before


def test_other_parameters_or_ranks_keep_their_own(tracker):
    (layout,) = bucket_layout.read(_saved(tracker))
    module = _wrapped()
    before, reducer = _buckets(module), module.reducer
    others = [
        BucketLayout(2, layout.parameters, layout.buckets),
        BucketLayout(1, "other", layout.buckets),
    ]
    tracker.restore({bucket_layout.KEY: bucket_layout.to_text(others)}, {"model": module})
    assert module.reducer is reducer
    assert _buckets(module) == before
    _train(module, 2)
    assert _buckets(module) == _rebuilt()


def test_a_damaged_text_is_an_error(tracker):
    with pytest.raises(errors.CorruptSnapshot, match="bucket layouts"):
        tracker.restore({bucket_layout.KEY: "[[1]]"}, {})
