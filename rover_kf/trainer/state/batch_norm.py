# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Running statistics of normalisation, in which replicated ranks differ.

DistributedDataParallel gives all ranks those of rank 0 at the next forward pass. A checkpoint in
which any rank's copy stands for all would restore another rank's. So all take rank 0's before they
save.
"""

from __future__ import annotations

import collections
import contextlib
import datetime as dt
import logging
from collections.abc import Iterable, Iterator, Mapping

import torch
import torch.distributed as dist
from torch.nn.modules.batchnorm import SyncBatchNorm, _NormBase

from rover_kf import errors
from rover_kf.trainer.state.dtensor import local_part
from rover_kf.trainer.state.traverse import iter_instances

_log = logging.getLogger("rover_kf")

SOURCE = 0
"""The rank that DistributedDataParallel takes buffers from."""
_SOON = dt.timedelta(seconds=10)
"""Ranks that take part in the same steps come to one at about the same time."""
_DRAIN = dt.timedelta(seconds=10)
"""The wait for all ranks before a drain's save. A pod that is about to end has no more time."""
_MOST_NAMED = 8


class BatchNormSync:
    """The running statistics of one training process, synchronized before a save."""

    def __init__(self, round_: int = 0) -> None:
        self._round, self._compared = round_, False
        self._modules: list[torch.nn.Module] = []
        """All modules of the state that was looked at last."""
        self._norms: tuple[_NormBase, ...] = ()

    def broadcast(self, state: Mapping[str, object]) -> None:
        """Take rank 0's before a save; all ranks call it after the same step.

        Raises:
            UnsupportedState: rank 0's state has other modules, or not all ranks call it.
        """
        if self._has_peers():
            self._find_norms(state)
            self._broadcast()

    def broadcast_before_drain(self, state: Mapping[str, object], step: int) -> None:
        """Take rank 0's if all ranks reach the drain in time; else do nothing.

        Raises:
            UnsupportedState: rank 0's state has other modules.
        """
        if not self._has_peers():
            return
        self._find_norms(state)
        if self._norms and _all_come(f"rover-kf/statistics/{self._round}/drain/{step}"):
            self._broadcast()

    @staticmethod
    def _has_peers() -> bool:
        return dist.is_initialized() and dist.get_world_size() > 1

    def _find_norms(self, state: Mapping[str, object]) -> None:
        tops = list(iter_instances(state, torch.nn.Module))
        seen = _all_modules(tops)
        if seen != self._modules:
            self._modules, self._norms = seen, tuple(_unsynchronized(tops))

    def _broadcast(self) -> None:
        if not self._compared:
            self._compared = True
            self._compare()
        for same in _by_type_and_device(self._norms):
            flat = torch.cat([each.reshape(-1) for each in same])
            dist.broadcast(flat, SOURCE)
            sizes = [each.numel() for each in same]
            for each, taken in zip(same, torch.split(flat, sizes), strict=True):
                each.copy_(taken.view_as(each))

    def _compare(self) -> None:
        """See that all ranks are here and have the same, each of them once.

        What differs in size ends a process in the middle of the broadcast, without a word of
        Python's; so does another rank's next collective, where that one does not call this.
        """
        store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no public way
        place, rank = f"rover-kf/statistics/{self._round}", dist.get_rank()
        features = [norm.num_features for norm in self._norms]
        mine = f"{len(features)} normalisations of {features} features"
        # One process may train one model after another.
        number = store.add(f"{place}/{rank}", 1)
        store.set(f"{place}/{number}/{rank}", mine)
        if not self._norms:
            return
        others = range(1, dist.get_world_size()) if rank == SOURCE else (SOURCE,)
        keys = {other: f"{place}/{number}/{other}" for other in others}
        _wait(store, keys)
        for other, key in keys.items():
            if (theirs := store.get(key).decode()) != mine:
                raise errors.UnsupportedState(
                    f"the state of rank {rank} has {mine}, rank {other}'s has {theirs}; give all "
                    "ranks the same modules (averaged weights, say, on every rank), or say "
                    "Checkpointer(replicated=False) where each has a model of its own"
                )


def _all_come(prefix: str) -> bool:
    """Whether all ranks broadcast; the first rank that decides decides for all of them.

    Without a common decision a rank that came late would wait in the broadcast for ranks that have
    left.
    """
    store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no public way
    keys = {rank: f"{prefix}/{rank}" for rank in range(dist.get_world_size())}
    store.set(keys[dist.get_rank()], "")
    try:
        store.wait([*keys.values()], _DRAIN)
        decision = "go"
    except RuntimeError:
        decision = "skip"
        _log.warning(
            "ranks %s have not come to the drain: running statistics are saved as each rank has "
            "them",
            _missing_ranks(store, keys),
        )
    agreed: bytes | str = store.compare_set(f"{prefix}/decision", "", decision)
    return agreed in ("go", b"go")


def _wait(store: dist.distributed_c10d.Store, keys: Mapping[int, str]) -> None:
    """Until these ranks have told theirs, as long as their store waits for anything."""
    with contextlib.suppress(RuntimeError):
        store.wait([*keys.values()], _SOON)
        return
    _log.warning(
        "waiting for ranks %s to call step, as every rank has to", _missing_ranks(store, keys)
    )
    try:
        store.wait([*keys.values()])
    except RuntimeError as late:
        raise errors.UnsupportedState(
            f"ranks {_missing_ranks(store, keys)} do not come to the step that is to be "
            "saved: every rank "
            "calls step, with a state that has the same modules, not rank 0 alone"
        ) from late


def _missing_ranks(store: dist.distributed_c10d.Store, keys: Mapping[int, str]) -> list[int]:
    return [rank for rank, key in keys.items() if not store.check([key])][:_MOST_NAMED]


def _all_modules(tops: list[torch.nn.Module]) -> list[torch.nn.Module]:
    # At each save: modules() would take six times as long, and of large models as long as the save.
    found, last = [*tops], tops
    while last:
        last = [child for module in last for child in module.children()]
        found += last
    return found


def _unsynchronized(tops: Iterable[torch.nn.Module]) -> Iterator[_NormBase]:
    for top in tops:
        if any(local_part(each) is not each for each in top.parameters()):
            continue  # FSDP2 leaves each rank its own
        for module in top.modules():
            # Ranks of SyncBatchNorm have the same ones by themselves.
            if isinstance(module, _NormBase) and not isinstance(module, SyncBatchNorm):
                yield module


def _by_type_and_device(modules: tuple[_NormBase, ...]) -> list[list[torch.Tensor]]:
    """Their statistics by type and device, as far as the process group can send them."""
    found: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]]
    found = collections.defaultdict(list)
    on_devices_alone = dist.get_backend() == "nccl"
    for module in modules:
        for each in (module.running_mean, module.running_var):
            if each is not None and (each.is_cuda or not on_devices_alone):
                found[each.dtype, each.device].append(each)
    return list(found.values())
