# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Figures of normalisation that ranks agree in before they save, wherever the state has them."""

from __future__ import annotations

import contextlib
import pathlib

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from rover_kf import errors
from rover_kf.trainer.running_statistics import RunningStatistics

pytestmark = pytest.mark.torch


def _normed(rank: int) -> torch.nn.Module:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    module[1].running_mean.fill_(rank + 1.0)
    return module


def _rank(rank: int, folder: str) -> None:
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    statistics, told = RunningStatistics(), []

    def agree(state: dict[str, object], *modules: torch.nn.Module) -> None:
        statistics.agree(state)
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


def _averaging(rank: int, folder: str) -> None:
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    state = {"model": _normed(rank), "average": [_normed(rank)][rank:]}
    if rank == 0:
        with contextlib.suppress(RuntimeError):  # rank 1 has gone
            RunningStatistics().agree(state)
        return
    with pytest.raises(errors.UnsupportedState) as refused:
        RunningStatistics().agree(state)
    pathlib.Path(folder, "told").write_text(str(refused.value))


def test_other_modules_than_rank_0s_are_told(tmp_path):
    """Averaged weights on rank 0 alone: to send each other unequal numbers ends a process by
    SIGABRT, or never."""
    mp.spawn(_averaging, (str(tmp_path),), 2)
    told = (tmp_path / "told").read_text()
    assert "rank 1 has 1 normalisations" in told
    assert "rank 0's has 2 normalisations" in told
