# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Recovery and scaling side by side: a stock PyTorchJob, and the same job with rover-kf.

``make bench-elastic`` writes build/bench/elastic.json and prints a table. Each repeat of an action
is a job of its own on the real three-node cluster, the sides in turn. What was measured is kept
after each repeat, so a run that was cut off goes on; ``--fresh`` measures anew.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import pathlib
import sys
import time
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
sys.path.append(str(ROOT / "tests" / "cluster"))

from benchmarks.checkpoint_systems.environments import NotInstalled
from benchmarks.elastic_bench import cluster_setup, manifest, standalone, table
from benchmarks.elastic_bench.actions import ACTIONS
from benchmarks.elastic_bench.outcome import Outcome
from benchmarks.elastic_bench.results import Results, Sample
from benchmarks.elastic_bench.run import GOODPUT_SECONDS, Course
from benchmarks.elastic_bench.waiting import StoodStill, TooLong

OUT = pathlib.Path("build/bench/elastic.json")
TRIES = 5
NAMES = ("standalone", "submit", *ACTIONS, "goodput")
APART_SECONDS = 20.0
"""Between the first jobs of actions that are measured abreast: torch is loaded one by one."""


def main() -> None:
    """Measure what is lacking, write, print."""
    given = _given()
    actions, sides = given.actions.split(","), given.sides.split(",")
    cores = {"cores": os.cpu_count(), "load_at_start": round(os.getloadavg()[0], 1)}
    results = Results(given.out, {**cluster_setup.stated(), **cores})
    todo = {name: given.systems.split(",") if name == "standalone" else sides for name in actions}
    if given.fresh:
        for name in actions:
            for side in todo[name]:
                results.clear(name, side)
    if "standalone" in todo:
        _repeat(results, "standalone", given.repeats, _systems(todo.pop("standalone")))
    if todo:
        with cluster_setup.prepared() as cluster:
            courses = {side: _course(cluster, side, given) for side in sides}
            _all(results, todo, courses, repeats=given.repeats, abreast=given.abreast)
    print(table.markdown(results.report()))


def _course(cluster: cluster_setup.Place, side: str, given: argparse.Namespace) -> Course:
    logs = given.out.parent / "elastic-logs"
    return Course(cluster, side, logs, given.logs, given.goodput_seconds)


def _given() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--actions", default=",".join(NAMES))
    parser.add_argument("--sides", default=",".join(manifest.SIDES), help="on the cluster")
    parser.add_argument("--systems", default=",".join(standalone.SYSTEMS), help="standalone")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--abreast", action="store_true", help="actions at a time: a stock job waits most of it"
    )
    parser.add_argument("--logs", action="store_true", help="keep those of all repeats")
    parser.add_argument("--goodput-seconds", type=float, default=GOODPUT_SECONDS)
    parser.add_argument("--fresh", action="store_true", help="forget what was measured of these")
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("build/bench/elastic.json")
    )
    given = parser.parse_args()
    actions = given.actions.split(",")
    if unknown := set(actions) - set(NAMES):
        parser.error(f"no such action: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if "goodput" in actions and given.goodput_seconds <= 0:
        parser.error("goodput is a share of seconds: --goodput-seconds has to be above 0")
    if given.abreast and "node_lost" in actions and len(actions) > 1:
        parser.error("node_lost takes a node from the others, too: measure it by itself")
    return given


def _all(
    results: Results,
    todo: dict[str, list[str]],
    courses: dict[str, Course],
    *,
    repeats: int,
    abreast: bool,
) -> None:
    """Every action on the cluster: one after the other, or each in a thread of its own."""
    parts = list(todo.items())
    if "goodput" in todo:  # it takes minutes whatever is measured: the sides need not take turns
        parts = [(name, sides) for name, sides in parts if name != "goodput"]
        parts += [("goodput", [side]) for side in todo["goodput"]]

    def measure(at: int, name: str, sides: list[str]) -> None:
        time.sleep(at * APART_SECONDS if abreast else 0.0)
        takes = {side: _on_cluster(courses[side], name) for side in sides}
        _repeat(results, name, 1 if name == "goodput" else repeats, takes)

    with concurrent.futures.ThreadPoolExecutor(len(parts) if abreast else 1) as threads:
        done = [threads.submit(measure, at, *part) for at, part in enumerate(parts)]
        for one in concurrent.futures.as_completed(done):
            one.result()


def _repeat(
    results: Results, name: str, repeats: int, takes: dict[str, Callable[[], Sample]]
) -> None:
    """Each side in turn, as often as is lacking; a side that fails is not tried again."""
    failed: set[str] = set()
    for number in range(repeats):
        for side, take in takes.items():
            if side in failed or results.count(name, side) > number:
                continue
            try:
                sample = _undisturbed(take)
            except (TooLong, NotInstalled) as reason:
                failed.add(side)
                print(f"{name} of {side}: {reason}", file=sys.stderr, flush=True)
                continue
            results.add(name, side, sample)
            print(f"{name} of {side}: {sample}", flush=True)


def _undisturbed(take: Callable[[], Sample]) -> Sample:
    """Again, if this process stood still meanwhile; not for ever."""
    for _ in range(TRIES - 1):
        try:
            return take()
        except StoodStill as reason:  # noqa: PERF203 - a retry is what the loop is for
            print(f"not counted: {reason}", file=sys.stderr, flush=True)
    return take()


def _systems(systems: list[str]) -> dict[str, Callable[[], Sample]]:
    return {system: lambda system=system: _single(standalone.take(system)) for system in systems}


def _on_cluster(course: Course, name: str) -> Callable[[], Sample]:
    if name == "goodput":
        return lambda: {"value": course.goodput()}
    return lambda: _sample(course.take(name))


def _single(found: Outcome) -> Sample:
    return {"value": found.seconds, "steps_lost": found.steps_lost}


def _sample(found: Outcome) -> Sample:
    return {
        "seconds": round(found.seconds, 3),
        "survivors_seconds": round(found.survivors, 3),
        "pause_seconds": round(found.pause, 3),
        "steps_lost": found.steps_lost,
    }


if __name__ == "__main__":
    main()
