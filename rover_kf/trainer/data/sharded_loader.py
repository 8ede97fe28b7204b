# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A DataLoader over leased slots, read ahead by workers.

In a process group each step begins with an exchange of the ranks' slots, so every rank's checkpoint
has all that was used. A rank without slots takes part with a batch of weight 0 until nobody has
any.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, default_collate

from rover_kf import errors
from rover_kf.api import codec
from rover_kf.api.data import DataPlan, DataProgress, SlotSpan, UnreadableSpan
from rover_kf.data_sharding.consumed_set import ConsumedSet
from rover_kf.data_sharding.ledger_source import LedgerSource
from rover_kf.data_sharding.worker_view import merge_spans
from rover_kf.trainer.data.lease_prefetcher import LeasePrefetcher
from rover_kf.trainer.data.worker_reads import ReadBatch, ReadOrder, WorkerReads, WorkerSeeds

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


_log = logging.getLogger("rover_kf")

_IDLE_SECONDS = 0.02
"""Between two looks of ranks that all have nothing now."""
_MANY_FAILURES = 16
"""Failed reads after which data or reader are broken, if more slots failed than came."""


class LeasedData(Protocol):
    """A ShardedDataset as its loader uses it."""

    source: LedgerSource
    name: str
    epochs: int
    shard_size: int
    shared: bool
    union: ConsumedSet
    idle_at: float

    @property
    def plan(self) -> DataPlan:
        """The plan of the leases."""

    @property
    def epoch(self) -> int:
        """Number of the epoch that is read."""

    @property
    def done(self) -> int:
        """Used slots of the epoch."""

    def leases(self, ahead: int, least: int) -> LeasePrefetcher:
        """Return this process's leases."""


class ShardedLoader(DataLoader[Any]):
    """A loader of the slots that a ShardedDataset leases, ``batch_size`` of them a step.

    Raises:
        InputError: the batch is empty, or an option does not go with leases.
    """

    def __init__(
        self,
        data: LeasedData,
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
        self._agreement: StepAgreement | None = None
        self._agreed_on: DataPlan | None = None
        self._last: Any = None
        self._read_slots = self._failed_slots = self._failures = 0
        self._weight, self._seeds = 1.0, WorkerSeeds(options)
        super().__init__(
            WorkerReads(data.source, collate_fn or default_collate),
            batch_size=None,
            sampler=_LeaseSampler(self),
            collate_fn=_identity,  # type: ignore[arg-type] # without batch_size it gets no list
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
        self._agree_on_progress()
        leases = self._leases()
        leases.release()  # what an iteration that was left had read ahead
        for read in self._read_batches(leases):
            told = self._exchange_contributions(leases, read)
            if all(brought.flag == EPOCH_OVER for brought in told):
                break
            if not self._count(leases, told, () if read is None else read.unusable):
                if read is None:
                    self._data.idle_at = time.monotonic()
                    time.sleep(_IDLE_SECONDS)
                continue
            self._data.idle_at = float("-inf")
            if read is not None and read.samples:
                self._last = read.batch
            yield self._last if self._last is not None else self._placeholder_batch(told)
            if self._data.shared:
                # Trained on only now: told sooner, it could be in a place that the model is not at.
                leases.mark_used(told[0].spans)
                leases.report_unusable(read.unusable if read is not None else ())
        self._data.union.next_epoch()
        leases.next_epoch()

    def __len__(self) -> int:
        """Not known: how much a rank takes is decided while training runs.

        Raises:
            TypeError: always.
        """
        raise TypeError("how many batches a rank takes of leased data is not known before")

    def next_read(self) -> ReadOrder | None:
        """The slots of the next batch that is read; None: there are none now."""
        leases, found, room = self._leases(), list[SlotSpan](), self._slots
        while room > 0 and len(merge_spans(found)) < MOST_SPANS:
            span = leases.claim(room)
            if span is None:
                break
            found.append(span)
            room -= span.size
        return (self._data.epoch, tuple(found)) if found else None

    # -- one step ---------------------------------------------------------------------------------

    def _agree_on_progress(self) -> None:
        """Where ranks have looked at a stream one after the other, agree on what is used."""
        plan = self._data.plan
        if self._data.shared or plan is self._agreed_on:
            return
        self._agreement = StepAgreement(tuple(sorted(p.name for p in plan.partitions)))
        self._agreed_on = plan
        if any(not partition.bounded for partition in plan.partitions):
            own = codec.dumps(self._data.union.progress()).decode()
            told = self._agreement.all_gather_text(own)
            self._data.union = ConsumedSet.from_progress(
                codec.loads(DataProgress, text.encode()) for text in told
            )

    def _exchange_contributions(
        self, leases: LeasePrefetcher, read: ReadBatch | None
    ) -> list[Contribution]:
        """What all ranks bring; this one first of all says what it does."""
        if read is not None:
            brought = Contribution(HAS_BATCH, merge_spans(read.spans), read.samples)
        else:
            brought = Contribution(EPOCH_OVER if leases.finished else NO_BATCH_NOW)
        return [brought] if self._agreement is None else self._agreement.all_gather(brought)

    def _count(
        self,
        leases: LeasePrefetcher,
        contributions: list[Contribution],
        unusable: tuple[UnreadableSpan, ...] = (),
    ) -> bool:
        """Whether anybody's batch counts; all ranks find the same."""
        union = self._data.union
        own = 0 if len(contributions) == 1 else dist.get_rank()
        counts = union.accept_batches([brought.spans for brought in contributions])
        sizes = [
            brought.samples * good for brought, good in zip(contributions, counts, strict=True)
        ]
        mine = contributions[own].spans
        if not (self._data.shared and counts[own]):
            leases.mark_used(mine, but=() if counts[own] else union.missing(mine))
        if counts[own] and unusable and not self._data.shared:
            leases.report_unusable(unusable)
        total = sum(sizes)
        self._weight = sizes[own] * len(contributions) / total if total else 0.0
        return total > 0

    def _placeholder_batch(self, contributions: list[Contribution]) -> Any:
        """A sample of those that others bring, for a rank that has had none: its weight is 0."""
        brought = next(brought for brought in contributions if brought.samples)
        read: ReadBatch = self.dataset[self._data.epoch, brought.spans]
        if read.unreadable is not None:
            raise errors.InputError(
                f"a rank to which nothing could be lent cannot read a first sample: {read.reason}"
            )
        self._last = read.batch
        return read.batch

    # -- reading ----------------------------------------------------------------------------------

    def _leases(self) -> LeasePrefetcher:
        return self._data.leases(max(self._ahead, 2 * self._data.shard_size), self._slots)

    def _read_batches(self, leases: LeasePrefetcher) -> Iterator[ReadBatch | None]:
        """Batches in the order of their leases, without end; None: there is nothing now."""
        pipe: Iterator[ReadBatch] | None = None
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
            elif found.unreadable is None:
                self._read_slots += sum(span.size for span in found.spans)
                yield found
            else:
                self._set_aside(leases, found, found.spans[found.unreadable])

    def _set_aside(self, leases: LeasePrefetcher, read: ReadBatch, span: SlotSpan) -> None:
        self._failed_slots += span.size
        self._failures += 1
        _log.warning("rover-kf: %s cannot be read now: %s", span, read.reason)
        leases.report_unreadable(span, read.reason)
        leases.release([other for other in read.spans if other != span])
        if self._failures >= _MANY_FAILURES and self._failed_slots > self._read_slots:
            raise errors.InputError(
                f"{self._failures} reads of {self._data.name!r} failed, of "
                f"{self._failed_slots} slots, and "
                f"{self._read_slots} could be read; the last one: {read.reason}"
            )


class _LeaseSampler:
    """The slots of batches, as DataLoader asks for them; it may have more after it had none."""

    def __init__(self, loader: ShardedLoader) -> None:
        self._loader = loader

    def __iter__(self) -> _LeaseSampler:
        return self

    def __next__(self) -> ReadOrder:
        order = self._loader.next_read()
        if order is None:
            raise StopIteration
        return order


def _identity(read: ReadBatch) -> ReadBatch:
    return read
