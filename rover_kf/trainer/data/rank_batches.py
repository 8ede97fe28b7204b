# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which samples a rank computes, one part of a step after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from rover_kf.data_sharding.batches import Batches, BatchPart
from rover_kf.trainer.data.shuffle import SampleOrder

AT_ONCE = 16384
"""Samples whose places are computed together."""


class RankBatch(NamedTuple):
    """A part, as it is handed out."""

    part: BatchPart
    done: int
    """Samples of the epoch that are used after its step, over all ranks."""
    indices: list[int]


def rank_batches(batches: Batches, order: SampleOrder) -> Iterator[RankBatch]:
    """The rest of an epoch.

    Args:
        batches: of the rank.
        order: of the epoch.
    """
    step = 0
    while step < batches.steps:
        size = batches.end_of(step) - batches.begin_of(step)
        parts = batches.parts_of(size)
        at_once = max(AT_ONCE // sum(part.samples for part in parts), 1)
        # All of one size: only the epoch's last batch is smaller.
        end = min(step + at_once, max(batches.full, step + 1))
        begins = torch.arange(batches.begin_of(step), batches.begin_of(end), batches.batch)
        own = torch.cat([torch.arange(part.begin, part.end) for part in parts])
        indices = order.samples_at((begins[:, None] + own).flatten()).tolist()
        sized, at = [(part, part.samples) for part in parts], 0
        for number in range(step, end):
            done = batches.end_of(number)
            for part, samples in sized:
                yield RankBatch(part, done, indices[at : at + samples])
                at += samples
        step = end
