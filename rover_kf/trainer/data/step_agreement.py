# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks tell each other which slots they bring to a step: one small all_gather, on the host."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.distributed as dist

from rover_kf.api.data import SlotSpan

MOST_SPANS = 8
"""Of a batch; what a rank brings has a fixed size, so that one round suffices."""
HAS_BATCH, NO_BATCH_NOW, EPOCH_OVER = 2, 1, 0
"""A rank brings a batch; has none, but the epoch is not over for it; has heard that it is over."""


@dataclasses.dataclass(frozen=True, slots=True)
class Contribution:
    """A rank's part of a step."""

    flag: int
    spans: tuple[SlotSpan, ...] = ()
    samples: int = 0
    """That the slots hold; fewer than slots where some are empty."""


class StepAgreement:
    """An exchange of contributions between the ranks of a process group.

    ``partitions`` have the same order on all ranks.
    """

    def __init__(self, partitions: tuple[str, ...]) -> None:
        self._names = partitions
        self._numbers = {name: number for number, name in enumerate(partitions)}
        self._group: Any = None
        self._ready = False

    def all_gather(self, contribution: Contribution) -> list[Contribution]:
        """Return the contributions of all ranks, by rank; all ranks must call it."""
        if not dist.is_initialized():
            return [contribution]
        numbers = [contribution.flag, contribution.samples, len(contribution.spans)]
        for span in contribution.spans:
            numbers += (self._numbers[span.partition], span.begin, span.end)
        numbers += [0] * (3 + 3 * MOST_SPANS - len(numbers))
        mine = torch.tensor(numbers, dtype=torch.int64)
        return [self._parse(told.tolist()) for told in self._all_gather(mine)]

    def all_gather_text(self, text: str) -> list[str]:
        """Return the texts of all ranks; all ranks must call it."""
        if not dist.is_initialized():
            return [text]
        data = text.encode()
        sizes = [int(told) for told in self._all_gather(torch.tensor([len(data)]))]
        padded = torch.tensor(list(data.ljust(max(sizes), b" ")), dtype=torch.uint8)
        told = self._all_gather(padded)
        return [bytes(one.tolist()[:size]).decode() for one, size in zip(told, sizes, strict=True)]

    def _all_gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        if not self._ready:
            # Slots are numbers of the host's: a device would have to be waited for.
            own = dist.get_backend() != "gloo"
            self._group = dist.new_group(backend="gloo") if own else None
            self._ready = True
        found = [torch.empty_like(mine) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(found, mine, group=self._group)
        return found

    def _parse(self, numbers: list[int]) -> Contribution:
        flag, samples, count, *rest = numbers
        spans = (
            SlotSpan(self._names[rest[3 * n]], rest[3 * n + 1], rest[3 * n + 2])
            for n in range(count)
        )
        return Contribution(flag, tuple(spans), samples)
