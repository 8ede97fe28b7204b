# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a rendezvous costs the coordinator, from ten launchers to ten thousand.

``make bench-rendezvous`` writes build/bench/rendezvous.json and rendezvous.svg. Two figures, told
apart: CPU seconds of the state machine itself under simulated launchers, and of a whole real
sidecar with HTTP and JSON under connections of this process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import pathlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.rendezvous_bench import plot, served_rendezvous
from benchmarks.rendezvous_bench.simulated_launchers import Crowd

WATCHED_SECONDS = 30.0
"""Simulated seconds of a world in which nothing happens."""


class ThreadTime:
    """CPU seconds of this thread while it is open."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Count until it is left."""
        began = time.thread_time()
        yield
        self.seconds += time.thread_time() - began


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="10,100,1000,3000,10000")
    parser.add_argument(
        "--served", default="10,100,1000,3000,10000", help="sizes with HTTP; none: empty"
    )
    parser.add_argument("--repeats", type=int, default=3, help="the least is kept")
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("build/bench/rendezvous.json")
    )
    given = parser.parse_args()
    agents = {}
    for size in map(int, given.sizes.split(",")):
        agents[str(size)] = simulated(size, given.repeats)
        print(size, "simulated:", agents[str(size)], flush=True)
    http = {}
    for size in map(int, filter(None, given.served.split(","))):
        http[str(size)] = through_http(size)
        print(size, "served:", http[str(size)], flush=True)
    exponent = {name: slope(agents, f"{name}_seconds") for name in ("form", "lose_process")}
    report = {"agents": agents, "http": http, "growth_exponent": exponent}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(report, indent=1) + "\n")
    plot.draw(report, given.out.with_suffix(".svg"))
    print(f"growth as agents to the power of {exponent}; written to {given.out}")


def simulated(size: int, repeats: int) -> dict[str, float]:
    """CPU seconds of the state machine; each phase's least of several runs."""
    runs = [_run(size) for _ in range(repeats)]
    return {name: min(run[name] for run in runs) for name in runs[0]}


def through_http(size: int) -> dict[str, float]:
    """CPU seconds of a real sidecar for the same round."""
    found = served_rendezvous.measure(size)
    return {
        "form_seconds": round(found.cpu_seconds, 3),
        "wall_seconds": round(found.wall_seconds, 3),
        "milliseconds_an_agent": round(1000 * found.cpu_seconds / size, 3),
        "order_bytes": found.order_bytes,
    }


def slope(agents: dict[str, Any], name: str) -> float:
    """The power of the members with which the cost grows, from a hundred on; 1 is linear."""
    points = [
        (math.log(int(size)), math.log(found[name]))
        for size, found in agents.items()
        if int(size) >= 100  # noqa: PLR2004 - below it, what a round costs at all
    ]
    return round(_least_squares(points), 3) if len(points) > 1 else math.nan


def _least_squares(points: Sequence[tuple[float, float]]) -> float:
    x_mean = sum(x for x, _ in points) / len(points)
    y_mean = sum(y for _, y in points) / len(points)
    rise = sum((x - x_mean) * (y - y_mean) for x, y in points)
    return rise / sum((x - x_mean) ** 2 for x, _ in points)


def _run(size: int) -> dict[str, float]:
    meter = ThreadTime()
    crowd = Crowd(size, meter)
    found: dict[str, float] = {}
    for name, act in (
        ("form", crowd.form),
        ("watch", lambda: crowd.watch(WATCHED_SECONDS)),
        ("lose_process", crowd.lose_process),
    ):
        seconds, calls = meter.seconds, crowd.calls
        act()
        found[f"{name}_seconds"] = round(meter.seconds - seconds, 6)
        found[f"{name}_calls"] = crowd.calls - calls
    found["watch_cpu_share"] = round(found["watch_seconds"] / WATCHED_SECONDS, 6)
    return found


if __name__ == "__main__":
    main()
