# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A TFJob with parameter servers loses a part (stock, and with rover-kf), or has a hot one.

``make bench-tfjob`` writes build/bench/tfjob.json and prints a table. Each scenario of each side is
a job of its own on the real three-node cluster. What was measured is kept after each job, so a run
that was cut off goes on; ``--fresh`` measures anew.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
sys.path.append(str(ROOT / "tests" / "cluster"))

from testcluster import cluster as clusters
from testcluster import deployment, host_python, settings, storage, tfjobs
from testcluster.cluster import Cluster
from testcluster.deployment import ProjectImages
from testcluster.errors import CommandFailed
from testcluster.images import Images
from testcluster.objects import apply

from benchmarks.tfjob_bench import overloaded_ps, run

NAMESPACE = "bench-tfjob"
SIDES = ("rover", "stock")
HOT = "hot_ps"


def main() -> None:
    """Measure what is lacking, write, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenarios", default=",".join([*run.SCENARIOS, HOT]))
    parser.add_argument("--sides", default=",".join([*SIDES, *overloaded_ps.SIDES]))
    parser.add_argument("--fresh", action="store_true", help="forget what was measured of these")
    out = pathlib.Path("build/bench/tfjob.json")
    parser.add_argument("--out", type=pathlib.Path, default=out)
    given = parser.parse_args()
    report: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    kept = report.setdefault("jobs", {})
    wanted = [
        (name, side)
        for name in given.scenarios.split(",")
        for side in given.sides.split(",")
        if side in (overloaded_ps.SIDES if name == HOT else SIDES)
    ]
    todo = [one for one in wanted if given.fresh or "/".join(one) not in kept]
    report["settings"] = {
        "nodes": 3,
        "cores": os.cpu_count(),
        "load_at_start": round(os.getloadavg()[0], 1),
        "steps": run.STEPS,
        "fault_after_step": run.FAULT_AT,
        "steps_between_saves": 10,
    }
    if todo:
        with prepared() as cluster:
            for name, side in todo:
                _measure(cluster, name, side, report, given.out)
    print(table(report))


def _measure(
    cluster: Cluster, name: str, side: str, report: dict[str, Any], out: pathlib.Path
) -> None:
    _clear(cluster)
    outcome: run.Outcome | overloaded_ps.Course
    if name == HOT:
        outcome = overloaded_ps.run(cluster, NAMESPACE, side)
    else:
        outcome = run.run(cluster, NAMESPACE, name, side)
    report["jobs"][f"{name}/{side}"] = dataclasses.asdict(outcome)
    report["scenarios"] = scenarios(report["jobs"])
    report |= ratios(report["jobs"])
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_suffix(".part")
    part.write_text(json.dumps(report, indent=1) + "\n")
    part.replace(out)
    print(f"{name} of {side}: {outcome}", flush=True)
    _clear(cluster)


def scenarios(jobs: dict[str, Any]) -> dict[str, dict[str, object]]:
    """What of each scenario was measured, by side."""
    found: dict[str, dict[str, object]] = {}
    for place, one in jobs.items():
        name, side = place.split("/")
        told = ("completed", "seconds", "recovered_seconds", "found", "steps_lost", "seen")
        known = {key: one[key] for key in told if key in one}
        known["seconds"] = round(known["seconds"], 1)
        found.setdefault(name, {}).update({f"{side}_{key}": value for key, value in known.items()})
    return found


def ratios(jobs: dict[str, Any]) -> dict[str, float]:
    """Of a hot PS: how long the job takes with a resize over without, and over a restart."""
    took = {
        side: jobs[f"{HOT}/{side}"]["seconds"]
        for side in overloaded_ps.SIDES
        if f"{HOT}/{side}" in jobs
    }
    names = {"none": "hot_ps_ratio", "restart": "hot_ps_ratio_to_restart"}
    if "resize" not in took:
        return {}
    known = {name: took[side] for side, name in names.items() if side in took}
    return {name: round(took["resize"] / seconds, 3) for name, seconds in known.items()}


def table(report: dict[str, Any]) -> str:
    """For a person."""
    lines = [
        "| scenario | side | ended | s | fault to next step, s | steps lost |",
        "|---|---|---|---|---|---|",
    ]
    for place, one in report["jobs"].items():
        name, side = place.split("/")
        ended = "completed" if one["completed"] else "failed"
        ended = "did not end" if one.get("seen") else ended
        again = one.get("recovered_seconds")
        again = "-" if again is None else f"{again:.0f}"
        lines.append(
            f"| {name} | {side} | {ended} | {one['seconds']:.0f} | {again} | {one['steps_lost']} |"
        )
    return "\n".join(lines)


@contextlib.contextmanager
def prepared() -> Iterator[Cluster]:
    """A cluster with the controller; taken down again if it did not run before."""
    found = clusters.current()
    with clusters.using():
        cluster = clusters.up()
        _deploy(cluster)
        with contextlib.suppress(CommandFailed):
            cluster.kubectl("create", "namespace", NAMESPACE)
        apply(cluster, host_python.host_volume(NAMESPACE))
        apply(cluster, storage.shared(NAMESPACE, tfjobs.CLAIM, _folder(cluster)))
        yield cluster
    if found is None:
        clusters.down_unless_used(cluster.root)


def _deploy(cluster: Cluster) -> None:
    images = Images(settings.cache()).project()
    cluster.load(images)
    base = settings.REPOSITORY / "manifests" / "overlays" / "standalone"
    with tempfile.TemporaryDirectory() as folder:
        told = deployment.overlay(pathlib.Path(folder), base, ProjectImages.built(images))
        objects = cluster.kubectl("kustomize", str(told))
    cluster.kubectl("apply", "-f", "-", text=objects)
    deployment.wait(cluster)


def _clear(cluster: Cluster) -> None:
    """What another job has left would be taken for this one's."""
    run.remove(cluster, NAMESPACE)
    for path in _folder(cluster).iterdir():
        shutil.rmtree(path, ignore_errors=True)


def _folder(cluster: Cluster) -> pathlib.Path:
    return cluster.root / "shared" / NAMESPACE


if __name__ == "__main__":
    main()
