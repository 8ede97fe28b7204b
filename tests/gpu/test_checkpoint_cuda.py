# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What only a GPU can show: device tensors reach the arena and come back bit-equal.

Run by ``make test-gpu``; not part of ``make test``, which needs no GPU.
"""

from __future__ import annotations

import pytest
import torch
from torch.distributed.fsdp import fully_shard

from rover_kf.trainer import settings as trainer_settings
from rover_kf.trainer.checkpointer import Checkpointer
from rover_kf.trainer.settings import TrainerSettings
from tests.support.pods import checkpoint_pod

if not torch.cuda.is_available():
    pytest.skip(
        "no CUDA device here; run make test-gpu where there is one", allow_module_level=True
    )


def _settings(pod: checkpoint_pod.Pod, round_: int) -> TrainerSettings:
    """Of the process that a round has started."""
    return trainer_settings.read(pod.environment(round_=round_))


def _state(seed: int) -> dict[str, object]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.BatchNorm1d(128)).cuda()
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters()), "epoch": seed}


def _train(state: dict[str, object]) -> None:
    state["optimizer"].zero_grad()
    state["model"](torch.randn(32, 64, device="cuda")).square().sum().backward()
    state["optimizer"].step()


def _bytes(state: dict[str, object]) -> list[bytes]:
    moments = state["optimizer"].state_dict()["state"]
    tensors = [*state["model"].state_dict().values()]
    tensors += [moments[key][name] for key in sorted(moments) for name in sorted(moments[key])]
    return [tensor.cpu().numpy().tobytes() for tensor in tensors]


def test_device_state_comes_back_bit_equal(tmp_path):
    """Parameters, buffers and Adam's moments on the device survive the process that held them."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        state = _state(1)
        with Checkpointer(settings=_settings(pod, 1)) as first:
            assert first.restore(state) == 0
            _train(state)
            first.save(1, state)
            expected = _bytes(state)
            _train(state)
        successor = _state(2)
        _train(successor)
        with Checkpointer(settings=_settings(pod, 2)) as second:
            assert second.restore(successor) == 1
            assert second.restored_from == "memory"
        assert _bytes(successor) == expected
        assert all(tensor.is_cuda for tensor in successor["model"].state_dict().values())


def test_a_save_does_not_see_later_steps(tmp_path):
    """What is sealed is the state at the call, although kernels go on afterwards."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        settings = trainer_settings.read(pod.environment())
        tensor = torch.zeros(1 << 22, device="cuda")
        state: dict[str, object] = {"tensor": tensor}
        with Checkpointer(settings=settings) as checkpointer:
            checkpointer.restore(state)
            tensor.add_(1.0)
            checkpointer.save(1, state)
            for _ in range(100):
                tensor.add_(1.0)
        fresh = {"tensor": torch.zeros(1 << 22, device="cuda")}
        with Checkpointer(settings=_settings(pod, 2)) as successor:
            assert successor.restore(fresh) == 1
        assert torch.equal(fresh["tensor"], torch.ones_like(tensor))


def test_the_copy_runs_beside_training_and_is_waited_for(tmp_path):
    """With overlap the bytes are those of the call, in page-locked slots, over several steps."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        settings = trainer_settings.read(pod.environment())
        state = _state(1)
        with Checkpointer(settings=settings, overlap=True) as checkpointer:
            checkpointer.restore(state)
            for step in range(1, 6):
                _train(state)
                expected = _bytes(state)
                checkpointer.save(step, state)
                _train(state)  # BatchNorm's buffers at once, parameters after the hook
            assert checkpointer._stager._slots.buffers[0].is_pinned()
            assert checkpointer._stager.sealed == 5
        successor = _state(2)
        _train(successor)
        with Checkpointer(settings=_settings(pod, 2)) as second:
            assert second.restore(successor) == 5
        assert _bytes(successor) == expected


def test_slots_are_registered_once_and_given_back(tmp_path):
    """Growth takes the registration back before the old mapping goes, and makes a new one."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        settings = trainer_settings.read(pod.environment())
        state: dict[str, object] = {"tensor": torch.ones(1 << 20, device="cuda")}
        checkpointer = Checkpointer(settings=settings)
        checkpointer.save(1, state)
        (before, _) = checkpointer._stager._slots.buffers
        checkpointer.save(2, state)
        assert checkpointer._stager._slots.buffers[0] is before
        state["more"] = torch.full((1 << 21,), 2.0, device="cuda")
        checkpointer.save(3, state)
        (after, _) = checkpointer._stager._slots.buffers
        assert after.numel() > before.numel()
        assert (before.is_pinned(), after.is_pinned()) == (False, True)
        checkpointer.close()
        assert not after.is_pinned()
        fresh = {key: torch.zeros_like(value) for key, value in state.items()}
        with Checkpointer(settings=_settings(pod, 2)) as successor:
            assert successor.restore(fresh) == 3
        assert all(torch.equal(fresh[key], state[key]) for key in state)


def test_optimizer_state_of_dtensors_is_filled_before_it_goes_to_the_device(tmp_path):
    """FSDP2 on one device: moments that a fresh optimizer does not have yet come back bit-equal."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
        torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
        try:
            state = _sharded(1)
            _train(state)
            with Checkpointer(settings=_settings(pod, 1)) as first:
                first.restore(state)
                first.save(1, state)
            fresh = _sharded(2)
            with Checkpointer(settings=_settings(pod, 2)) as second:
                assert second.restore(fresh) == 1
            assert _local_bytes(fresh) == _local_bytes(state)
        finally:
            torch.distributed.destroy_process_group()


def _sharded(seed: int) -> dict[str, object]:
    state = _state(seed)
    fully_shard(state["model"])
    return {**state, "optimizer": torch.optim.AdamW(state["model"].parameters())}


def _local_bytes(state: dict[str, object]) -> list[bytes]:
    moments = state["optimizer"].state_dict()["state"]
    tensors = [*state["model"].state_dict().values()]
    tensors += [moments[key][name] for key in sorted(moments) for name in sorted(moments[key])]
    local = [getattr(tensor, "to_local", lambda kept=tensor: kept)() for tensor in tensors]
    return [tensor.cpu().numpy().tobytes() for tensor in local]
