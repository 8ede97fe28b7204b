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
    """The places in its batch of what the rank computes."""
    return torch.cat([torch.arange(part.begin, part.end) for part in parts])
