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
from rover_kf.sharding.batches import Batches, Part
from rover_kf.trainer import settings as trainer_settings
from rover_kf.trainer.balance import Balance
from rover_kf.trainer.orders import Order, Shuffled, Unshuffled

_log = logging.getLogger("rover_kf")

_AT_ONCE = 16384
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
        balance: the model, as it is trained: ranks then take parts of a step by their speed, which
            its backward pass shows. Which samples a step has stays. Not with tensor or pipeline
            parallelism.
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
        balance: torch.nn.Module | None = None,
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
            alike=Balance.parts_alike(balance),
        )
        if options.get("in_order") is False:
            raise errors.InputError("in_order=False: batches must come in order to be counted")
        self._seed, self._shuffle, self._fingerprint = seed, shuffle, fingerprint
        self._done = 0
        self._part: Part | None = None
        self._ahead: collections.deque[tuple[Part, int]] = collections.deque()
        """Parts that were asked for and have not come yet, with what is done after their step."""
        self.epoch = 0
        """Number of the epoch that the next iteration goes on with."""
        super().__init__(dataset, batch_sampler=_Cuts(self), **options)
        self._balance: Balance | None = None
        if balance is not None and self._whole.world_size > 1:
            self._balance = Balance(balance, self._whole, self._fetched_ahead())

    @property
    def weight(self) -> float:
        """To multiply the mean loss of the last batch by, before ``backward``."""
        return 1.0 if self._part is None else self._part.weight

    @property
    def accumulates(self) -> bool:
        """Whether more of the last batch's step follows: no optimizer step yet."""
        return self._part is not None and not self._part.last

    @property
    def done(self) -> int:
        """Samples of the epoch that steps have used, over all ranks."""
        return self._done

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override] # DataLoader's has a narrower type
        """The rest of the epoch, then the next one is the next; this rank's part of it."""
        if self._balance is None:
            yield from self._counted()
            return
        with self._balance.iterating(self._done):
            for batch in self._counted():
                part = self._part
                assert part is not None  # noqa: S101 - it was counted
                self._balance.give(part)
                yield batch
                self._balance.asked(part)

    def _counted(self) -> Iterator[Any]:
        self._ahead.clear()
        for batch in super().__iter__():
            self._part, done = self._ahead.popleft()
            if self._part.last:
                # Before the loop's body runs: a checkpoint at its end has this step.
                self._done = done
            yield batch
        self._turn()

    def __len__(self) -> int:
        """Batches that this rank has in a whole epoch."""
        whole = self._whole
        full, rest = whole.full, whole.steps - whole.full
        found = full * len(whole.parts_of(whole.batch))
        return found + len(whole.parts_of(whole.samples % whole.batch)) if rest else found

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
        self._part = None
        if not self._rest().steps:
            self._turn()

    def _fetched_ahead(self) -> int:
        """Parts that workers are given before they are asked for."""
        return self.num_workers * (self.prefetch_factor or 0)

    def _turn(self) -> None:
        self.epoch, self._done = self.epoch + 1, 0

    def _rest(self) -> Batches:
        return dataclasses.replace(self._whole, done=self._done)

    def ordered(self) -> Iterator[list[int]]:
        """Indices into the data set, a part after the other, from the place on."""
        batches, order, step = self._rest(), self._order(), 0
        while step < batches.steps:
            costs, end = ((), batches.steps) if self._balance is None else self._balance.at(step)
            size = batches.end_of(step) - batches.begin_of(step)
            parts = batches.parts_of(size, costs)
            at_once = max(_AT_ONCE // sum(part.samples for part in parts), 1)
            # All of one size: only the epoch's last batch is smaller.
            end = min(end, step + at_once, max(batches.full, step + 1))
            begins = torch.arange(batches.begin_of(step), batches.begin_of(end), batches.batch)
            own = torch.cat([torch.arange(part.begin, part.end) for part in parts])
            indices = order.at((begins[:, None] + own).flatten()).tolist()
            sized, at = [(part, part.samples) for part in parts], 0
            for number in range(step, end):
                done = batches.end_of(number)
                for part, samples in sized:
                    self._ahead.append((part, done))
                    yield indices[at : at + samples]
                    at += samples
            step = end

    def _order(self) -> Order:
        if not self._shuffle:
            return Unshuffled()
        return Shuffled(self._whole.samples, self._seed, self.epoch)


class _Cuts:
    """The loader's batches, as DataLoader asks for them."""

    def __init__(self, loader: ElasticDataLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[list[int]]:
        return self._loader.ordered()

    def __len__(self) -> int:
        return len(self._loader)
