# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A DataLoader over leased slots: read ahead by workers, counted when the loop is given them.

In a process group each step begins with the ranks telling each other which slots they bring; what
they have then used is in every rank's part of the checkpoint. A rank that has nothing left to bring
takes part with a batch of weight 0 until nobody has.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader, default_collate

from rover_kf import errors
from rover_kf.api import codec
from rover_kf.api.data import DataPlan, Progress, Span
from rover_kf.api.leases import Unread
from rover_kf.data_sharding.consumed_set import Union
from rover_kf.data_sharding.worker_view import joined
from rover_kf.trainer.data.lease_prefetcher import Leases
from rover_kf.trainer.data.sharded_dataset import ShardedDataset
from rover_kf.trainer.data.step_agreement import (
    HAS,
    MOST_SPANS,
    NONE_NOW,
    OVER,
    Brought,
    Exchange,
)
from rover_kf.trainer.data.worker_reads import Order, Read, Reads
from rover_kf.trainer.data.worker_seeds import WorkerSeeds

_log = logging.getLogger("rover_kf")

_IDLE_SECONDS = 0.02
"""Between two looks of ranks that all have nothing now."""
_MANY_FAILURES = 16
"""Reads that fail are set aside; after so many, if more slots failed than came, data or reader are
broken."""


class ShardedLoader(DataLoader[Any]):
    """One a ShardedDataset, which makes it.

    Args:
        data: whose slots are leased.
        batch_size: slots that this rank takes a step.
        collate_fn: of a list of samples.
        options: of DataLoader.

    Raises:
        InputError: the batch is empty, or an option does not go with leases.
    """

    def __init__(
        self,
        data: ShardedDataset,
        batch_size: int,
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        **options: Any,
    ) -> None:
        wrong = sorted({"shuffle", "sampler", "batch_sampler", "drop_last"} & options.keys())
        if wrong:
            raise errors.InputError(
                f"{', '.join(wrong)} cannot be given: which samples come, in which order and to "
                "which rank, the leases say"
            )
        if batch_size < 1:
            raise errors.InputError(f"a batch of {batch_size} samples; 1 or more is needed")
        self._data, self._slots = data, batch_size
        workers = options.get("num_workers", 0)
        if workers:
            options.setdefault("persistent_workers", True)
        self._ahead = batch_size * (workers * (options.get("prefetch_factor") or 2) + 2)
        self._exchange: Exchange | None = None
        self._agreed_on: DataPlan | None = None
        self._last: Any = None
        self._good = self._bad = self._failures = 0
        self._weight, self._seeds = 1.0, WorkerSeeds(options)
        super().__init__(
            Reads(data.source, collate_fn or default_collate),
            batch_size=None,
            sampler=_Orders(self),
            collate_fn=_as_it_is,  # type: ignore[arg-type] # without batch_size it gets no list
            **options,
        )

    @property
    def weight(self) -> float:
        """To multiply the mean loss of the last batch by, before ``backward``.

        Gradients that are averaged over the ranks are then the mean over all ranks' samples.
        """
        return self._weight

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override] # DataLoader's has a narrower type
        """The rest of the epoch, as far as this rank takes it."""
        if self._data.epoch >= self._data.epochs:
            return
        self._begin()
        leases = self._leases()
        leases.give_back()  # what an iteration that was left had read ahead
        for read in self._reads(leases):
            told = self._tell(leases, read)
            if all(brought.flag == OVER for brought in told):
                break
            if not self._count(leases, told, () if read is None else read.spoilt):
                if read is None:
                    self._data.idle_at = time.monotonic()
                    time.sleep(_IDLE_SECONDS)
                continue
            self._data.idle_at = float("-inf")
            if read is not None and read.samples:
                self._last = read.batch
            yield self._last if self._last is not None else self._stand_in(told)
            if self._data.shared:
                # Trained on only now: told sooner, it could be in a place that the model is not at.
                leases.used(told[0].spans)
                leases.spoilt(read.spoilt if read is not None else ())
        self._data.union.turn()
        leases.turn()

    def __len__(self) -> int:
        """Not known: how much a rank takes is decided while training runs.

        Raises:
            TypeError: always.
        """
        raise TypeError("how many batches a rank takes of leased data is not known before")

    def next_order(self) -> Order | None:
        """The slots of the next batch that is read; None: there are none now."""
        leases, found, room = self._leases(), list[Span](), self._slots
        while room > 0 and len(joined(found)) < MOST_SPANS:
            span = leases.take(room)
            if span is None:
                break
            found.append(span)
            room -= span.size
        return (self._data.epoch, tuple(found)) if found else None

    # -- one step ---------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Where ranks have looked at a stream one after the other, agree on what is used."""
        plan = self._data.plan
        if self._data.shared or plan is self._agreed_on:
            return
        self._exchange = Exchange(tuple(sorted(p.name for p in plan.partitions)))
        self._agreed_on = plan
        if any(not partition.bounded for partition in plan.partitions):
            own = codec.dumps(self._data.union.progress()).decode()
            told = self._exchange.gather(own)
            self._data.union = Union.of(codec.loads(Progress, text.encode()) for text in told)

    def _tell(self, leases: Leases, read: Read | None) -> list[Brought]:
        """What all ranks bring; this one first of all says what it does."""
        if read is not None:
            brought = Brought(HAS, joined(read.spans), read.samples)
        else:
            brought = Brought(OVER if leases.finished else NONE_NOW)
        return [brought] if self._exchange is None else self._exchange.tell(brought)

    def _count(self, leases: Leases, told: list[Brought], spoilt: tuple[Unread, ...] = ()) -> bool:
        """Whether anybody's batch counts; all ranks find the same."""
        union = self._data.union
        own = 0 if len(told) == 1 else dist.get_rank()
        counts = union.agree([brought.spans for brought in told])
        sizes = [brought.samples * good for brought, good in zip(told, counts, strict=True)]
        mine = told[own].spans
        if not (self._data.shared and counts[own]):
            leases.used(mine, but=() if counts[own] else union.lacks(mine))
        if counts[own] and spoilt and not self._data.shared:
            leases.spoilt(spoilt)
        total = sum(sizes)
        self._weight = sizes[own] * len(told) / total if total else 0.0
        return total > 0

    def _stand_in(self, told: list[Brought]) -> Any:
        """A sample of those that others bring, for a rank that has had none: its weight is 0."""
        brought = next(brought for brought in told if brought.samples)
        read: Read = self.dataset[self._data.epoch, brought.spans]
        if read.broken is not None:
            raise errors.InputError(
                f"a rank to which nothing could be lent cannot read a first sample: {read.reason}"
            )
        self._last = read.batch
        return read.batch

    # -- reading ----------------------------------------------------------------------------------

    def _leases(self) -> Leases:
        return self._data.leases(max(self._ahead, 2 * self._data.shard_size), self._slots)

    def _reads(self, leases: Leases) -> Iterator[Read | None]:
        """Batches in the order of their leases, without end; None: there is nothing now."""
        pipe: Iterator[Read] | None = None
        while True:
            if pipe is None:
                if not leases.is_ready():
                    yield None
                    continue
                self._seeds.begin(self, self._data.epoch, self._data.done)
                pipe = super().__iter__()
            found = next(pipe, None)
            if found is None:
                pipe = None  # begun again when more is lent
            elif found.broken is None:
                self._good += sum(span.size for span in found.spans)
                yield found
            else:
                self._set_aside(leases, found, found.spans[found.broken])

    def _set_aside(self, leases: Leases, read: Read, span: Span) -> None:
        self._bad += span.size
        self._failures += 1
        _log.warning("rover-kf: %s cannot be read now: %s", span, read.reason)
        leases.unread(span, read.reason)
        leases.give_back([other for other in read.spans if other != span])
        if self._failures >= _MANY_FAILURES and self._bad > self._good:
            raise errors.InputError(
                f"{self._failures} reads of {self._data.name!r} failed, of {self._bad} slots, and "
                f"{self._good} could be read; the last one: {read.reason}"
            )


class _Orders:
    """The slots of batches, as DataLoader asks for them; it may have more after it had none."""

    def __init__(self, loader: ShardedLoader) -> None:
        self._loader = loader

    def __iter__(self) -> _Orders:
        return self

    def __next__(self) -> Order:
        order = self._loader.next_order()
        if order is None:
            raise StopIteration
        return order


def _as_it_is(read: Read) -> Read:
    return read
