# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Batches of leased slots, read where data are read: in a DataLoader's workers if it has any."""

from __future__ import annotations

import dataclasses
import random
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils.pin_memory import pin_memory

from rover_kf import errors
from rover_kf.api.data import SlotSpan, UnreadableSpan
from rover_kf.data_sharding.ledger_source import LedgerSource, SlotMarker, UnusableRecord

_BITS = 63


class WorkerSeeds:
    """The seeds of one loader's workers; a generator among its options is left alone.

    DataLoader draws a seed at each iteration, and a resumed epoch iterates once more. Then all that
    the loop draws afterwards (dropout) would differ from an undisturbed run.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._has_generator = options.get("generator") is not None

    def begin(self, loader: DataLoader[Any], epoch: int, done: int) -> None:
        """Seed an iteration by the script's seed and the position in the data."""
        if not self._has_generator:
            place = random.Random(f"{torch.initial_seed()} {epoch} {done}")  # noqa: S311 - no secret
            # Where DataLoader makes the tensor that it draws into: the default device.
            loader.generator = torch.Generator(torch.empty(()).device)
            loader.generator.manual_seed(place.getrandbits(_BITS))


ReadOrder = tuple[int, tuple[SlotSpan, ...]]
"""Epoch and slots of a batch."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReadBatch:
    """A batch that was read, or could not be."""

    spans: tuple[SlotSpan, ...]
    batch: Any = None
    samples: int = 0
    """Of the batch: slots may be empty."""
    unreadable: int | None = None
    """Index of the span that could not be read."""
    reason: str = ""
    unusable: tuple[UnreadableSpan, ...] = ()
    """Slots whose records nothing could be made of."""

    def pin_memory(self, device: Any = None) -> ReadBatch:
        """As DataLoader asks for it."""
        return dataclasses.replace(self, batch=pin_memory(self.batch, device))  # type: ignore[no-untyped-call] # torch's


class WorkerReads(Dataset[ReadBatch]):
    """A data set of batches, which DataLoader requests by their slots."""

    def __init__(self, source: LedgerSource, collate: Callable[[list[Any]], Any]) -> None:
        self._source, self._collate = source, collate

    def __getitem__(self, order: ReadOrder) -> ReadBatch:
        """Read a batch; what cannot be read is told in it.

        Raises:
            RoverError: said on purpose: the source would be asked again in vain.
        """
        epoch, spans = order
        samples: list[Any] = []
        spoilt: list[UnreadableSpan] = []
        for number, span in enumerate(spans):
            try:
                found = list(self._source.read(span, epoch))
            except errors.DatasetReadError:
                return self._isolate_unreadable(epoch, spans, number)
            except errors.RoverError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told and tried again
                return ReadBatch(spans, unreadable=number, reason=_text(error))
            if len(found) != span.size:
                reason = f"{len(found)} samples came for {span.size} slots"
                return ReadBatch(spans, unreadable=number, reason=reason)
            for slot, sample in enumerate(found, start=span.begin):
                if isinstance(sample, UnusableRecord):
                    place = SlotSpan(span.partition, slot, slot + 1)
                    spoilt.append(UnreadableSpan(place, sample.reason))
                elif sample is not SlotMarker.EMPTY:
                    samples.append(sample)
        batch = self._collate(samples) if samples else None
        return ReadBatch(spans, batch, len(samples), unusable=tuple(spoilt))

    def _isolate_unreadable(
        self, epoch: int, spans: tuple[SlotSpan, ...], number: int
    ) -> ReadBatch:
        """A file is damaged somewhere in a span: the rows before it are cut off, and those after.

        A shuffled order puts rows of all files into each span: only what is damaged is set aside.
        """
        span, reason = spans[number], "could be read the second time"
        for slot in range(span.begin, span.end):
            one = SlotSpan(span.partition, slot, slot + 1)
            try:
                list(self._source.read(one, epoch))
            except errors.DatasetReadError as error:
                reason = _text(error)
                before = SlotSpan(span.partition, span.begin, slot)
                after = SlotSpan(span.partition, slot + 1, span.end)
                cut = tuple(part for part in (before, one, after) if part.size)
                whole = (*spans[:number], *cut, *spans[number + 1 :])
                return ReadBatch(whole, unreadable=number + cut.index(one), reason=reason)
        return ReadBatch(spans, unreadable=number, reason=reason)


def _text(error: Exception) -> str:
    return "".join(traceback.format_exception_only(type(error), error)).strip()
