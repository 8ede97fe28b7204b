# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint in one process, against a real sidecar: what is refused, and how."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from rover_kf import errors
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.checkpoint.format import snapshot
from rover_kf.checkpoint.format.tensor_layout import Box
from rover_kf.sidecar.consistency import digest_worker
from rover_kf.trainer import settings as trainer_settings
from rover_kf.trainer.checkpointer import Checkpointer
from rover_kf.trainer.dcp import Reader, Writer, plan_items
from tests.support.pods import checkpoint_pod
from tests.support.training.single_process_mesh import own_group

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
]


def _checkpointer(pod: checkpoint_pod.Pod, **world: int) -> Checkpointer:
    return Checkpointer(settings=trainer_settings.read(pod.environment(**world)))


def _state(seed: int) -> dict:
    torch.manual_seed(seed)
    odd = {"it's [odd]": torch.randn(3), "empty": torch.empty(0, 2), "0-d": torch.tensor(seed)}
    return {
        "model": torch.nn.Linear(4, 2),
        "odd": odd,
        "half": torch.randn(5).bfloat16(),
        "n": seed,
    }


def test_any_state_dict_comes_back(tmp_path):
    """Modules, views, names with quotes, empty and 0-d tensors, other types and plain values."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        saved, loaded = _state(1), _state(2)
        saved["odd"]["view"], loaded["odd"]["view"] = (
            torch.arange(6).reshape(2, 3).T,
            torch.zeros(3, 2),
        )
        loaded["odd"]["view"] = loaded["odd"]["view"].long()
        with _checkpointer(pod) as checkpointer:
            dcp.save(saved, storage_writer=Writer(checkpointer, 7))
        arena = Arena(pod.settings.volume_path / "arena" / "0")
        (seal,) = arena.sealed()
        found = snapshot.read(arena.slot_path(seal.slot).read_bytes()[: seal.length])
        assert "half" in found.tensors
        assert (
            digest_worker.comparable_tensors(found) == []
        )  # any rank's will do, though they may differ
        with _checkpointer(pod, round_=2) as checkpointer:
            reader = Reader(checkpointer, loaded)
            assert reader.find() == 7
            dcp.load(loaded, storage_reader=reader)
        assert loaded["n"] == 1
        assert torch.equal(loaded["model"].weight, saved["model"].weight)
        assert torch.equal(loaded["half"], saved["half"])
        for name, tensor in saved["odd"].items():
            assert torch.equal(loaded["odd"][name], tensor), name


def test_an_asynchronous_save_has_what_was_there_when_it_began(tmp_path):
    """torch stages the state dict; what changes afterwards is not of this step."""
    with own_group(), checkpoint_pod.pods(tmp_path, 1) as (pod,):
        state = {"weight": torch.arange(5.0)}
        with _checkpointer(pod) as checkpointer:
            saving = dcp.async_save(state, storage_writer=Writer(checkpointer, 3))
            state["weight"].zero_()
            saving.result()
        with _checkpointer(pod, round_=2) as checkpointer:
            dcp.load(state, storage_reader=Reader(checkpointer, state))
        assert torch.equal(state["weight"], torch.arange(5.0))


def test_what_cannot_be_taken_is_told(tmp_path):
    """Nothing there, another shape, a planner that caches, and a state of Checkpointer's."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        with _checkpointer(pod) as checkpointer:
            reader = Reader(checkpointer, _state(1))
            assert reader.find() == 0
            with pytest.raises(CheckpointException, match="there is nothing to load; ask find"):
                dcp.load(_state(1), storage_reader=reader)
            caching = DefaultSavePlanner(enable_plan_caching=True)
            dcp.save(_state(1), storage_writer=Writer(checkpointer, 1), planner=caching)
            with pytest.raises(CheckpointException, match="make it without enable_plan_caching"):
                dcp.save(_state(1), storage_writer=Writer(checkpointer, 2), planner=caching)
        with _checkpointer(pod, round_=2) as checkpointer:
            wide = {"half": torch.zeros(6).bfloat16()}
            with pytest.raises(CheckpointException, match=r"Size mismatch .*\[5\].*\[6\]"):
                dcp.load(wide, storage_reader=Reader(checkpointer, wide))
            checkpointer.save(3, {"half": torch.zeros(6)})
        with _checkpointer(pod, round_=3) as checkpointer:
            reader = Reader(checkpointer, wide)
            assert reader.find() == 3
            with pytest.raises(CheckpointException, match="restore brings it back"):
                dcp.load(wide, storage_reader=reader)


def test_a_process_of_its_own_cannot_save_for_this_one():
    """AsyncCheckpointerType.PROCESS sends the writer to one; a lock of ours was said to be no
    thing to send."""
    writer = Writer(Checkpointer(settings=trainer_settings.read({})), 1)
    with pytest.raises(errors.UnsupportedState, match=r"without AsyncCheckpointerType\.PROCESS"):
        pickle.dumps(writer)


def test_outside_a_job_there_is_nothing_to_load():
    """Without a sidecar nothing is found, and saving does nothing."""
    checkpointer = Checkpointer(settings=trainer_settings.read({}))
    assert Reader(checkpointer, _state(1)).find() == 0
    dcp.save(_state(1), storage_writer=Writer(checkpointer, 1))


def test_a_box_that_lacks_something_is_no_box_to_load():
    """torch's planner would leave the rest of the tensor as it was, and say nothing."""
    held = Box((2, 0), (2, 3))
    for needed in (Box((2, 0), (2, 3)), Box((3, 1), (1, 2)), Box((9, 0), (0, 3))):
        plan_items.check("weight", needed, held)
    for needed in (Box((1, 0), (2, 3)), Box((4, 0), (1, 3)), Box((0, 0), (4, 3))):
        with pytest.raises(errors.CheckpointError, match=r"weight came as .* another number of"):
            plan_items.check("weight", needed, held)
