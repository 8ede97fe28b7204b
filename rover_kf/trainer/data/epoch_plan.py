# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A course and the batches that it is cut into: what loader and sampler go along."""

from __future__ import annotations

import dataclasses

from rover_kf.data_sharding.batches import Batches
from rover_kf.trainer import settings as trainer_settings
from rover_kf.trainer.data.epoch_position import EpochPosition
from rover_kf.trainer.data.shuffle import BlockInterleave


@dataclasses.dataclass(frozen=True, slots=True)
class BatchSpec:
    """A script's choice of batches."""

    batch: int
    """Samples a step, over all ranks."""
    micro_batch_size: int = 0
    """Samples that a rank computes at once; 0: its whole part of the step."""
    drop_last: bool = False
    lanes: int = 0
    """Of data sets with blocks, for each worker; 0: none."""
    workers: int = 1
    """Batches go to them in turn: each then reads lanes of its own."""

    def interleave(self) -> BlockInterleave | None:
        """Return how an epoch goes over blocks.

        Raises:
            InputError: no lanes can be of these numbers.
        """
        if not self.lanes:
            return None
        return BlockInterleave(self.lanes * max(self.workers, 1), max(self.batch // self.lanes, 1))


@dataclasses.dataclass(frozen=True, slots=True)
class EpochPlan:
    """An epoch as one rank sees it."""

    position: EpochPosition
    batches: Batches
    """Of an epoch."""

    def remaining(self) -> Batches:
        """Return what the epoch has left."""
        return self.batches.starting_at(self.position.done)


def plan_epochs(
    dataset: object,
    spec: BatchSpec,
    *,
    seed: int,
    shuffle: bool,
    fingerprint: str,
    rank: int | None,
    world_size: int | None,
) -> EpochPlan:
    """Plan the epochs of a map-style data set; see ``EpochPosition``.

    ``rank`` and ``world_size`` come from the environment if they are None.

    Raises:
        InputError: the data set has no length, or the numbers make no batches.
    """
    given = trainer_settings.read()
    course = EpochPosition(
        dataset, seed=seed, shuffle=shuffle, fingerprint=fingerprint, interleave=spec.interleave()
    )
    whole = Batches(
        samples=course.samples,
        done=0,
        batch=spec.batch,
        rank=given.rank if rank is None else rank,
        world_size=given.world_size if world_size is None else world_size,
        max_samples=spec.micro_batch_size or spec.batch,
        drop_last=spec.drop_last,
    )
    return EpochPlan(course, whole)
