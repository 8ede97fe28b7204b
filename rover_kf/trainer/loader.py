# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A data loader that goes on where the checkpoint stands, in a world of any size.

Steps are global batches of a fixed order (rover_kf.sharding): which samples a step trains on
depends on seed and epoch alone, not on the number of ranks or on what has failed before. The place
is a part of the checkpoint, so that of the steps that survive each sample is in exactly one.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sized
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from rover_kf import errors
from rover_kf.sharding.batches import Batches, Cut
from rover_kf.sharding.permutation import Permutation
from rover_kf.trainer import settings as trainer_settings

_log = logging.getLogger("rover_kf")

_AT_ONCE = 8192
"""Samples whose places are computed together."""
_VERSION = 1


class ElasticDataLoader(DataLoader[Any]):
    """In the place of a DataLoader with a DistributedSampler.

    Give it to the checkpointer with the rest of the state, and iterate: after a restore the first
    iteration is the rest of the epoch. ``weight`` keeps the gradient exact where ranks take unequal
    parts, ``accumulates`` says that more of the same step follows::

        loader = ElasticDataLoader(dataset, batch_size=256)
        state = {"model": model, "optimizer": optimizer, "loader": loader}
        step = checkpointer.restore(state)
        while loader.epoch < epochs:
            for inputs, labels in loader:
                (loss(model(inputs), labels) * loader.weight).backward()
                ...

    Args:
        dataset: map-style; the same samples in every process and every time.
        batch_size: samples a step over all ranks together, which stays when their number changes.
        micro_batch_size: samples that a rank computes at once; 0: its whole part of the step. Then
            a smaller world accumulates gradients over more of them.
        seed: of the order.
        shuffle: False: the data set's own order.
        drop_last: leave out samples of an epoch that do not fill a batch.
        fingerprint: of the data set's contents: a checkpoint of others is refused.
        rank: of this process and ...
        world_size: ... their number; from the environment if not given.
        options: of DataLoader, such as num_workers and collate_fn.

    Raises:
        InputError: the data set has no length, or the numbers make no batches.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        micro_batch_size: int = 0,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        fingerprint: str = "",
        rank: int | None = None,
        world_size: int | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(dataset, Sized):
            raise errors.InputError(
                f"{type(dataset).__name__} has no length; an order needs a data set that has one"
            )
        given = trainer_settings.read()
        self._whole = Batches(
            samples=len(dataset),
            done=0,
            batch=batch_size,
            rank=given.rank if rank is None else rank,
            world_size=given.world_size if world_size is None else world_size,
            most=micro_batch_size or batch_size,
            drop_last=drop_last,
        )
        self._seed, self._shuffle, self._fingerprint = seed, shuffle, fingerprint
        self._done = 0
        self._cut: Cut | None = None
        self._ahead: collections.deque[Cut] = collections.deque()
        """Of batches that were asked for and have not come yet."""
        self.epoch = 0
        """Number of the epoch that the next iteration goes on with."""
        super().__init__(dataset, batch_sampler=_Cuts(self), **options)

    @property
    def weight(self) -> float:
        """To multiply the mean loss of the last batch by, before ``backward``."""
        return 1.0 if self._cut is None else self._cut.weight

    @property
    def accumulates(self) -> bool:
        """Whether more of the last batch's step follows: no optimizer step yet."""
        return self._cut is not None and not self._cut.last

    @property
    def done(self) -> int:
        """Samples of the epoch that steps have used, over all ranks."""
        return self._done

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override] # DataLoader's has a narrower type
        """The rest of the epoch, then the next one is the next; this rank's part of it."""
        self._ahead.clear()
        batches = self._rest()
        for batch in super().__iter__():
            cut = self._cut = self._ahead.popleft()
            if cut.last:
                # Before the loop's body runs: a checkpoint at its end has this step.
                self._done = batches.end_of(cut.step)
            yield batch
        self._turn()

    def __len__(self) -> int:
        """Batches that this rank has in a whole epoch."""
        whole = self._whole
        full, end = len(whole.cuts_of(0)), len(whole.cuts_of(whole.steps - 1))
        return full * (whole.steps - 1) + end

    def state_dict(self) -> dict[str, Any]:
        """The place after the last whole step; the same on all ranks."""
        return {
            "version": _VERSION,
            "samples": self._whole.samples,
            "fingerprint": self._fingerprint,
            "shuffle": self._shuffle,
            "seed": self._seed,
            "epoch": self.epoch,
            "done": self._done,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on at a place; the next iteration begins there.

        Raises:
            CheckpointError: it is a place in another data set, or of a newer version.
        """
        if state["version"] != _VERSION:
            raise errors.CheckpointError(
                f"the loader's state has version {state['version']}, this one reads {_VERSION}; "
                "restore with the version of rover-kf that wrote it, or a newer one"
            )
        for name, own in (
            ("samples", self._whole.samples),
            ("fingerprint", self._fingerprint),
            ("shuffle", self._shuffle),
        ):
            if state[name] != own:
                raise errors.CheckpointError(
                    f"the checkpoint's place is in an order of {name}={state[name]!r}, this data "
                    f"set has {own!r}; train on the same data, or leave the loader out of the "
                    "state to begin an epoch of the new data"
                )
        if state["seed"] != self._seed:
            _log.warning("the order goes on with the checkpoint's seed %s", state["seed"])
        self._seed, self.epoch, self._done = state["seed"], state["epoch"], state["done"]
        self._cut = None
        if not self._rest().steps:
            self._turn()

    def _turn(self) -> None:
        self.epoch, self._done = self.epoch + 1, 0

    def _rest(self) -> Batches:
        return dataclasses.replace(self._whole, done=self._done)

    def ordered(self) -> Iterator[list[int]]:
        """Indices into the data set, a batch after the other, from the place on."""
        batches = self._rest()
        order = Permutation(batches.samples, self._seed, self.epoch) if self._shuffle else None
        steps_at_once = max(_AT_ONCE * batches.world_size // batches.batch, 1)
        for first in range(0, batches.steps, steps_at_once):
            steps = range(first, min(first + steps_at_once, batches.steps))
            cuts = [cut for step in steps for cut in batches.cuts_of(step)]
            places = torch.cat([torch.arange(cut.begin, cut.end) for cut in cuts])
            indices = (places if order is None else _at(order, places)).tolist()
            end = 0
            for cut in cuts:
                begin, end = end, end + cut.end - cut.begin
                self._ahead.append(cut)
                yield indices[begin:end]


class _Cuts:
    """The loader's batches, as DataLoader asks for them."""

    def __init__(self, loader: ElasticDataLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[list[int]]:
        return self._loader.ordered()

    def __len__(self) -> int:
        return len(self._loader)


def _at(order: Permutation, places: torch.Tensor) -> torch.Tensor:
    """``order.at`` of every place."""
    found = order.once(places)
    while bool((outside := found >= order.size).any()):
        found[outside] = order.once(found[outside])
    return found
