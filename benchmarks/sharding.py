# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The data path: what its loader costs, what its place in the data takes, a resume.

``make bench-sharding`` writes build/bench/sharding.json. The package sharding_bench has its parts.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.sharding_bench import (
    file_readers,
    leases,
    ledgers,
    overhead,
    resume,
    shared_ledger,
)
from benchmarks.sharding_bench.counted_samples import Counted
from rover_kf import ElasticDataLoader
from rover_kf.data_sharding.permutation import Permutation

BATCH, RANKS = 256, 4
SIZES = (10**6, 10**9, 10**12)
PARTS = ("loader_overhead", "orders", "ledgers", "leases", "resume", "pulled", "file_readers")


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60, help="of the loader's overhead")
    parser.add_argument("--epochs", type=int, default=3, help="of resume and pulling, each system")
    parser.add_argument("--parts", default=",".join(PARTS), help="to measure")
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("build/bench/sharding.json")
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "loader_overhead": lambda: {
            "loader_overhead": {str(n): overhead.measure(n, given.rounds) for n in (0, 2)}
        },
        "orders": lambda: {"orders": {f"{size:.0e}": order(size) for size in SIZES}},
        "ledgers": ledgers.measure,
        "leases": leases.measure,
        "resume": lambda: resume.measure(given.epochs),
        "pulled": lambda: shared_ledger.measure(given.epochs),
        "file_readers": lambda: file_readers.measure(given.epochs),
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    report = json.loads(given.out.read_text()) if given.out.exists() else {}
    for name in given.parts.split(","):
        found = parts[name]()
        report |= found | {"peers": report.get("peers", {}) | found.get("peers", {})}
        given.out.write_text(json.dumps(report, indent=1) + "\n")
        print(json.dumps(found, indent=1), flush=True)


def order(size: int) -> dict[str, float]:
    """An order's memory, its state, and how soon its middle is there."""
    tracemalloc.start()
    made = Permutation(size, 1, 2)
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    loader = ElasticDataLoader(Counted(size), BATCH, rank=1, world_size=RANKS)
    loader.load_state_dict(loader.state_dict() | {"done": size // 2})
    return {
        "order_bytes": memory,
        "snapshot_bytes": len(json.dumps(loader.state_dict())),
        "snapshot_ms": milliseconds(loader.state_dict),
        "first_batch_ms": milliseconds(lambda: next(loader.ordered())),
        "sample_us": milliseconds(lambda: made.value_at(size // 2)) * 1e3,
    }


def milliseconds(call: Callable[[], object]) -> float:
    """Median of a call's time."""
    samples = []
    for _ in range(21):
        begun = time.perf_counter()
        call()
        samples.append(time.perf_counter() - begun)
    return round(statistics.median(samples) * 1e3, 4)


if __name__ == "__main__":
    main()
