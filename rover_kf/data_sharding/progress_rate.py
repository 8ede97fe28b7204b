# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How far data sets are read, how fast, and by whom: what a status tells of a desk's ledgers."""

from __future__ import annotations

import collections
import dataclasses

from rover_kf.api.data import DataStatus, PoisonedShard, WorkerShare
from rover_kf.data_sharding.dispatcher import LeaseCounter, ShardDispatcher
from rover_kf.data_sharding.ledger import LeaseLedger

WINDOW_SECONDS = 60.0
_LOOK_SECONDS = 1.0
_MOST_POISON, _MOST_WORKERS = 8, 64


@dataclasses.dataclass(slots=True)
class _RateSamples:
    """Slots that were done of a data set since its round began, by when it was looked."""

    ledger: LeaseLedger
    seen: collections.deque[tuple[float, int]]


class ProgressRate:
    """The rates at which a dispatcher's data sets are read."""

    def __init__(self, dispatcher: ShardDispatcher) -> None:
        self._dispatcher = dispatcher
        self._samples: dict[str, _RateSamples] = {}
        self._sampled_at = float("-inf")

    def tick(self, now: float) -> None:
        """Sample the ledgers, if that is due."""
        if now - self._sampled_at < _LOOK_SECONDS:
            return
        self._sampled_at = now
        for name, counter in self._dispatcher.counters.items():
            if counter.ledger is None:
                continue
            looks = self._samples.get(name)
            if looks is None or looks.ledger is not counter.ledger:
                looks = self._samples[name] = _RateSamples(counter.ledger, collections.deque())
            looks.seen.append((now, _used(counter.ledger)))
            while now - looks.seen[0][0] > WINDOW_SECONDS:
                looks.seen.popleft()

    def status(self) -> tuple[DataStatus, ...]:
        """All data sets."""
        return tuple(
            self._status(counter, counter.ledger)
            for counter in self._dispatcher.counters.values()
            if counter.ledger is not None
        )

    def _status(self, counter: LeaseCounter, ledger: LeaseLedger) -> DataStatus:
        lanes = ledger.partitions.values()
        size, left = sum(lane.size for lane in lanes), sum(lane.remaining for lane in lanes)
        rate = self._rate(counter.plan.name)
        ends = all(lane.partition.bounded for lane in lanes)
        more = left + size * (counter.plan.epochs - ledger.epoch - 1)
        busy = sorted(ledger.workers.items(), key=lambda item: -item[1].used)
        poison = ledger.poisoned[-_MOST_POISON:]
        return DataStatus(
            name=counter.plan.name,
            epoch=ledger.epoch,
            epochs=counter.plan.epochs,
            slots=size,
            done=sum(lane.done.total for lane in lanes),
            outstanding=sum(account.outstanding for account in ledger.workers.values()),
            poisoned=sum(lane.poison.total for lane in lanes) + ledger.unusable_records,
            rate=round(rate, 3),
            eta_seconds=round(more / rate, 1) if rate and ends else None,
            poison=tuple(PoisonedShard(p.span, p.tries, p.reason) for p in poison),
            workers=tuple(
                WorkerShare(name, account.used, account.outstanding)
                for name, account in busy[:_MOST_WORKERS]
            ),
        )

    def _rate(self, name: str) -> float:
        looks = self._samples.get(name)
        if looks is None or len(looks.seen) < 2:  # noqa: PLR2004 - a rate is between two
            return 0.0
        (begun, before), (ended, after) = looks.seen[0], looks.seen[-1]
        return (after - before) / (ended - begun)


def _used(ledger: LeaseLedger) -> int:
    return sum(account.used for account in ledger.workers.values()) + ledger.used_by_gone
