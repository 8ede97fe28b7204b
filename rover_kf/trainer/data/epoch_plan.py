# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A course and the batches that it is cut into: what loader and sampler go along."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any, NamedTuple

import torch

from rover_kf import errors
from rover_kf.data_sharding.batches import Batches, BatchPart
from rover_kf.trainer import settings as trainer_settings
from rover_kf.trainer.data.shuffle import (
    BlockInterleave,
    BlockShuffled,
    SampleOrder,
    Shuffled,
    Unshuffled,
    digest,
)

_log = logging.getLogger("rover_kf")
_VERSION = 1


class EpochPosition:
    """A position of one job in one data set, the same on all ranks.

    With ``interleave`` an epoch goes over the data set's blocks; without it any sample may follow
    any other. A data set in blocks has their sizes in an attribute ``blocks``. An empty
    ``fingerprint`` stands for the data set's attribute of that name.

    Raises:
        InputError: the data set has no length, or its blocks are not all of it.
    """

    def __init__(
        self,
        dataset: object,
        *,
        seed: int,
        shuffle: bool,
        fingerprint: str,
        interleave: BlockInterleave | None,
    ) -> None:
        if not isinstance(dataset, Sized):
            raise errors.InputError(
                f"{type(dataset).__name__} has no length; an order needs a data set that has one"
            )
        self.samples = len(dataset)
        self._seed, self._shuffle = seed, shuffle
        self._fingerprint = fingerprint or str(getattr(dataset, "fingerprint", ""))
        found: Sequence[int] = getattr(dataset, "blocks", ())
        self._blocks = found if shuffle and interleave is not None else ()
        self._interleave = interleave if len(self._blocks) else None
        if len(found) and sum(found) != self.samples:
            raise errors.InputError(
                f"{type(dataset).__name__} has {self.samples} samples and blocks of {sum(found)}; "
                "its attribute blocks must hold the number of samples in each block, in order"
            )
        self.epoch = 0
        self.done = 0
        """Samples of the epoch that steps have used, over all ranks."""

    def order(self) -> SampleOrder:
        """Return the order of the epoch."""
        if not self._shuffle:
            return Unshuffled()
        if self._interleave is None:
            return Shuffled(self.samples, self._seed, self.epoch)
        return BlockShuffled(self._blocks, self._interleave, self._seed, self.epoch)

    def next_epoch(self) -> None:
        """Begin the next epoch."""
        self.epoch, self.done = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position and what the order depends on."""
        lanes = self._interleave
        return {
            "version": _VERSION,
            "samples": self.samples,
            "fingerprint": self._fingerprint,
            "shuffle": self._shuffle,
            "blocks": "" if lanes is None else digest(self._blocks),
            "lanes": [] if lanes is None else [lanes.count, lanes.run_length],
            "seed": self._seed,
            "epoch": self.epoch,
            "done": self.done,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at a position.

        Raises:
            CheckpointError: it is a place in another data set, or of a newer version.
        """
        if state["version"] != _VERSION:
            raise errors.CheckpointError(
                f"the loader's state has version {state['version']}, this one reads {_VERSION}; "
                "restore with the version of rover-kf that wrote it, or a newer one"
            )
        own = self.state_dict()
        for name in ("samples", "fingerprint", "shuffle", "blocks"):
            if state[name] != own[name]:
                raise errors.CheckpointError(
                    f"the checkpoint's place is in an order of {name}={state[name]!r}, this data "
                    f"set has {own[name]!r}; train on the same data, or leave the loader out of "
                    "the state to begin an epoch of the new data"
                )
        for name in ("seed", "lanes"):
            if state[name] != own[name]:
                _log.warning("the order goes on with the checkpoint's %s %s", name, state[name])
        self._interleave = BlockInterleave(*state["lanes"]) if state["lanes"] else None
        self._seed, self.epoch, self.done = state["seed"], state["epoch"], state["done"]


AT_ONCE = 16384
"""Samples whose places are computed together."""


class RankBatch(NamedTuple):
    """A part of a batch with its indices."""

    part: BatchPart
    done: int
    """Samples of the epoch that are used after its step, over all ranks."""
    indices: list[int]


def rank_batches(batches: Batches, order: SampleOrder) -> Iterator[RankBatch]:
    """Return the rest of an epoch: a rank's batches in the epoch's order."""
    step = 0
    while step < batches.steps:
        whole = batches.parts_of(min(batches.batch, batches.samples))
        at_once = max(AT_ONCE // sum(part.samples for part in whole), 1)
        end = min(step + at_once, batches.steps)
        full = min(end, batches.full)
        begins = torch.arange(batches.begin_of(step), batches.begin_of(full), batches.batch)
        positions = [(begins[:, None] + _positions(whole)).flatten()]
        smaller: tuple[BatchPart, ...] = ()
        if end > full:  # only the epoch's last batch is smaller
            smaller = batches.parts_of(batches.samples - batches.begin_of(full))
            positions.append(_positions(smaller) + batches.begin_of(full))
        # One call: each costs as much as many samples.
        indices = order.samples_at(torch.cat(positions)).tolist()
        at = 0
        for number in range(step, end):
            done = batches.end_of(number)
            for part in whole if number < full else smaller:
                samples = part.end - part.begin
                yield RankBatch(part, done, indices[at : at + samples])
                at += samples
        step = end


def _positions(parts: tuple[BatchPart, ...]) -> torch.Tensor:
    return torch.cat([torch.arange(part.begin, part.end) for part in parts])


@dataclasses.dataclass(frozen=True, slots=True)
class EpochPlan:
    """An epoch as one rank sees it."""

    position: EpochPosition
    batches: Batches
    """Of an epoch."""

    def remaining(self) -> Batches:
        """Return what the epoch has left."""
        return dataclasses.replace(self.batches, done=self.position.done)


def plan_epochs(
    dataset: object,
    *,
    batch: int,
    micro_batch_size: int = 0,
    drop_last: bool,
    lanes: int,
    workers: int = 1,
    seed: int,
    shuffle: bool,
    fingerprint: str,
    rank: int | None,
    world_size: int | None,
) -> EpochPlan:
    """Plan the epochs of a map-style data set; see ``ElasticDataLoader``.

    ``workers`` get batches in turn: each then reads lanes of its own. ``rank`` and ``world_size``
    come from the environment if they are None.

    Raises:
        InputError: the data set has no length, or the numbers make no batches.
    """
    given = trainer_settings.read()
    interleave = None
    if lanes:
        interleave = BlockInterleave(lanes * max(workers, 1), max(batch // lanes, 1))
    course = EpochPosition(
        dataset, seed=seed, shuffle=shuffle, fingerprint=fingerprint, interleave=interleave
    )
    whole = Batches(
        samples=course.samples,
        done=0,
        batch=batch,
        rank=given.rank if rank is None else rank,
        world_size=given.world_size if world_size is None else world_size,
        max_samples=micro_batch_size or batch,
        drop_last=drop_last,
    )
    return EpochPlan(course, whole)
