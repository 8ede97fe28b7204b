# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a ledger of any size takes: its memory, its part of a checkpoint, and how long that takes.

A thousand workers have leased sixteen shards at a time, in any order, and each has used a part of
what it has: as many gaps as there will be.
"""

from __future__ import annotations

import random
import statistics
import time
import tracemalloc
from typing import Any

from rover_kf.api import codec
from rover_kf.api.data import DataPlan, DataProgress, Partition, SlotSpan
from rover_kf.data_sharding.consumed_set import ConsumedSet
from rover_kf.data_sharding.ledger import LeaseLedger

WORKERS, LEASES, TURNS = 1000, 16, 4
SIZES = (10**6, 10**9, 10**12)


def measure() -> dict[str, Any]:
    """Of all sizes; the two keys without one are of the largest."""
    found = {f"{size:.0e}": ledger(size) for size in SIZES}
    largest = found[f"{SIZES[-1]:.0e}"]
    return {
        "ledgers": found,
        "snapshot_bytes": largest["snapshot_bytes"],
        "snapshot_ms": largest["snapshot_ms"],
    }


def ledger(size: int) -> dict[str, float]:
    """One in the middle of its epoch."""
    shard = max(size // 10**6, 1) if size < 10**9 else 1000
    middle = size // 2 // shard * shard
    plan = DataPlan("train", (Partition("", 0, size),), shard)
    half = DataProgress(0, {"": f"0+{middle}"})
    tracemalloc.start()
    made = LeaseLedger(plan, half)
    _wear(made)
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    union = ConsumedSet(made.progress())
    snapshot = codec.dumps(union.progress())
    assert codec.loads(DataProgress, snapshot) == made.progress()
    begun = time.perf_counter()
    LeaseLedger(plan, codec.loads(DataProgress, snapshot), generation=1)
    again = time.perf_counter() - begun
    return {
        "ledger_bytes": memory,
        "gaps": len(made.partitions[""].done) - 1,
        "snapshot_bytes": len(snapshot),
        "snapshot_ms": milliseconds(union),
        "restore_ms": round(again * 1e3, 3),
    }


def _wear(made: LeaseLedger) -> None:
    chance = random.Random(1)  # noqa: S311 - a benchmark
    held: dict[str, list[SlotSpan]] = {str(number): [] for number in range(WORKERS)}
    for _ in range(TURNS):
        order = list(held)
        chance.shuffle(order)
        for worker in order:
            made.report(worker, 0, held[worker])
            held[worker] = list(made.lease(worker, 0, 0.0, LEASES))
    for worker, spans in held.items():
        used = spans[: chance.randrange(len(spans) + 1)]
        made.report(worker, 0, used)


def milliseconds(union: ConsumedSet) -> float:
    """Median of what a rank does for a checkpoint: the progress, as JSON."""
    samples = []
    for _ in range(101):
        begun = time.perf_counter()
        codec.dumps(union.progress())
        samples.append(time.perf_counter() - begun)
    return round(statistics.median(samples) * 1e3, 4)
