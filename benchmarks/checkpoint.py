# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoint systems side by side: the same state, file system, threads and run.

``make bench-checkpoint`` writes build/bench/checkpoint.json and prints the tables. Each pass gives
every system a fresh process, in turn, beside one process that measures the floors between the
saves. All run with one torch thread, as torchrun starts its workers.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import statistics
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.checkpoint_systems import shape
from benchmarks.checkpoint_systems.environments import NotInstalled
from benchmarks.checkpoint_systems.measure import Course, Figures, Size, loop_mebibytes, take
from benchmarks.checkpoint_systems.session import SYSTEMS, Failed, Session
from benchmarks.checkpoint_systems.table import markdown

COUNTED = ("dlrover", "rover", "rover-overlap")
"""Systems that save to memory at any rate: what became of each save is counted."""

COPIES_A_STEP = 2.5
"""Length of the steps' computing, in floor copies."""


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="256,1536", help="MiB of state, smallest first")
    parser.add_argument("--tensors", default="64,2000")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--warm", type=int, default=6, help="saves a pass")
    parser.add_argument("--repeats", type=int, default=2, help="durable saves a pass")
    parser.add_argument("--persists", type=int, default=4, help="saves beside steps a pass")
    parser.add_argument("--restores", type=int, default=4, help="restores a pass")
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("build/bench/checkpoint.json")
    )
    given = parser.parse_args()
    sizes: dict[str, Any] = {}
    for mebibytes in map(int, given.sizes.split(",")):
        counts: dict[str, Any] = {}
        for tensors in map(int, given.tensors.split(",")):
            size = Size(
                mebibytes, tensors, given.warm, given.repeats, given.persists, given.restores
            )
            report = measured(size, given.systems.split(","), given.passes, given.out.parent)
            counts[str(tensors)] = report
            print(markdown(f"{mebibytes} MiB in {tensors} tensors", report), "\n", flush=True)
        # The larger count stands for the size: it is the harder one.
        sizes[str(mebibytes)] = {**counts[str(tensors)], "tensors": counts}
        whole = {**sizes[str(mebibytes)], "sizes": sizes}
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(whole, indent=1) + "\n")


def measured(size: Size, systems: list[str], passes: int, out: pathlib.Path) -> dict[str, Any]:
    """One size's report."""
    figures = {name: Figures() for name in systems}
    prefault: list[float] = []
    persist: list[float] = []
    folder = out / "checkpoint-files"
    flat = shape.state_bytes(size.mebibytes, size.tensors)
    with Session("hardware_floor", str(flat)) as floors:
        floors.ask("prepare", folder=str(folder / "floors"), mebibytes=1, tensors=4)
        copy = statistics.median(floors.ask("bare")["ms"] for _ in range(7))
        with Session("no_checkpoint") as sham:
            compute_ms = COPIES_A_STEP * copy
            own = loop_mebibytes(
                sham, Course(floors, size, folder / "sham", compute_ms, counted=False)
            )
        for number in range(passes):
            prefault += [floors.ask("facts")["prefault_ms"] for _ in range(2)]
            persist += [floors.ask("durable")["ms"] for _ in range(2)]
            for name in systems if number % 2 == 0 else reversed(systems):
                files, compute_ms = folder / "files", COPIES_A_STEP * copy
                course = Course(floors, size, files, compute_ms, counted=name in COUNTED)
                one_system(name, course, figures[name])
    shutil.rmtree(folder, ignore_errors=True)
    copies = [sample for found in figures.values() for sample in found.floor] or [copy]
    return {
        "state_mib": size.mebibytes,
        "floor_copy_ms": round(statistics.median(copies), 1),
        "floor_prefault_ms": round(statistics.median(prefault), 1),
        "floor_persist_ms": round(statistics.median(persist), 1),
        "loop_memory_mib": own,
        "systems": {name: found.report(own) for name, found in figures.items()},
    }


def one_system(name: str, course: Course, figures: Figures) -> None:
    """A session of a system; one that fails is not tried again."""
    if figures.skipped:
        return
    shutil.rmtree(course.folder, ignore_errors=True)
    os.sync()  # what one system leaves to be written must not slow the next one
    try:
        with Session(name) as session:
            take(session, course, figures)
    except (Failed, NotInstalled) as reason:
        figures.skipped = str(reason)
        print(f"{name} is skipped: {reason}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
