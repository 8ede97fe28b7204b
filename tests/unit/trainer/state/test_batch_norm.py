# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Figures of normalisation that ranks agree in before they save, wherever the state has them."""

from __future__ import annotations

import contextlib
import datetime as dt
import pathlib

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from rover_kf import errors
from rover_kf.trainer.state import batch_norm
from rover_kf.trainer.state.batch_norm import BatchNormSync

pytestmark = pytest.mark.torch


def _normed(rank: int) -> torch.nn.Module:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    module[1].running_mean.fill_(rank + 1.0)
    return module


def _rank(rank: int, folder: str) -> None:
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    statistics, told = BatchNormSync(), []

    def agree(state: dict[str, object], *modules: torch.nn.Module) -> None:
        statistics.broadcast(state)
        told.append([module[1].running_mean.tolist() for module in modules])

    top, first, second = _normed(rank), _normed(rank), _normed(rank)
    agree({"model": top}, top)
    agree({"nets": {"first": first}, "others": [(second,)]}, first, second)
    rebuilt = _normed(rank)
    agree({"nets": {"first": rebuilt}}, rebuilt)
    rebuilt[1] = _normed(rank)[1]
    agree({"nets": {"first": rebuilt}}, rebuilt)
    pathlib.Path(folder, str(rank)).write_text(str(told))
    dist.destroy_process_group()


def test_ranks_agree_wherever_the_state_has_the_module(tmp_path):
    """At its top, in dicts, lists and tuples, in one that was built anew, and inside of another."""
    mp.spawn(_rank, (str(tmp_path),), 2)
    mean = [1.0, 1.0]
    for rank in range(2):
        assert (tmp_path / str(rank)).read_text() == str([[mean], [mean, mean], [mean], [mean]])


def _one_after_another(rank: int, folder: str) -> None:
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    BatchNormSync().broadcast({"model": _normed(rank)})
    second = {"model": _normed(rank), "head": _normed(rank)}
    if rank == 0:
        store.wait(["begun"])
    store.set("begun", "")
    BatchNormSync().broadcast(second)
    pathlib.Path(folder, str(rank)).write_text(str(second["head"][1].running_mean.tolist()))
    dist.destroy_process_group()


def test_a_second_training_may_have_other_modules(tmp_path):
    """Folds or stages in one process: what ranks told of the first is not taken for the second."""
    mp.spawn(_one_after_another, (str(tmp_path),), 2)
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["[1.0, 1.0]"] * 2


def _averaging(rank: int, folder: str, alike: int) -> None:
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    model = _normed(rank) if alike else torch.nn.Linear(2, 2)
    state = {"model": model, "average": [_normed(rank)][rank:]}
    with contextlib.ExitStack() as refusals:
        if alike or rank == 0:  # rank 1 has nothing to agree in else
            refused = refusals.enter_context(pytest.raises(errors.UnsupportedState))
        BatchNormSync().broadcast(state)
    if rank == 0:
        pathlib.Path(folder, "told").write_text(str(refused.value))


@pytest.mark.parametrize("alike", [1, 0])
def test_other_modules_than_rank_0s_are_told(tmp_path, alike):
    """Averaged weights on rank 0 alone: to send each other unequal numbers ends a process by
    SIGABRT, or never."""
    mp.spawn(_averaging, (str(tmp_path), alike), 2)
    told = (tmp_path / "told").read_text()
    assert f"rank 0 has {1 + alike} normalisations" in told
    assert f"rank 1's has {alike} normalisations" in told


def _alone(rank: int, folder: str) -> None:
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    if rank == 0:
        batch_norm._SOON = dt.timedelta(seconds=1)
        waits = dist.distributed_c10d._get_default_store()
        waits.set_timeout(dt.timedelta(seconds=1))
        with pytest.raises(errors.UnsupportedState) as refused:
            BatchNormSync().broadcast({"model": _normed(rank)})
        pathlib.Path(folder, "told").write_text(str(refused.value))


def test_a_step_on_rank_0_alone_is_told(tmp_path):
    """The broadcast would meet another rank's next collective, and end it by SIGABRT."""
    mp.spawn(_alone, (str(tmp_path),), 2)
    told = (tmp_path / "told").read_text()
    assert told.startswith("ranks [1] do not come to the step that is to be saved: every rank")


def _draining(rank: int, folder: str, late: int) -> None:
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    module = _normed(rank)
    if late:
        batch_norm._DRAIN = dt.timedelta(seconds=0.5)
        if rank == 0:
            store.wait(["left"])
    BatchNormSync().broadcast_before_drain({"model": module}, 7)
    store.set("left", "")
    pathlib.Path(folder, str(rank)).write_text(str(module[1].running_mean.tolist()))


@pytest.mark.parametrize("late", [0, 1])
def test_ranks_of_a_drain_agree_if_all_of_them_come_in_time(tmp_path, late):
    """Rank 0's pod may be the one that leaves. One that comes late is not waited for, and does not
    wait for those that have gone on."""
    mp.spawn(_draining, (str(tmp_path), late), 2)
    second = "[2.0, 2.0]" if late else "[1.0, 1.0]"
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["[1.0, 1.0]", second]
