# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How well jobs are sized while they run, and how well their throughput is foretold.

``make bench-scaling TRACES=DIR`` writes build/bench/scaling.json. DIR holds measured tables at any
depth (rover_kf/simulation/traces.py says which); of any models and any hardware. What decides is
production's: rover_kf.scaling.decide, its throughput model, and its allocator for a cluster.
docs/scaling.md says what is compared with what.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.scaling_bench import comparison
from benchmarks.scaling_bench.extrapolation import step_time_errors
from rover_kf.simulation import fleet_policies, traces
from rover_kf.simulation.cluster_simulation import FleetOutcome
from rover_kf.simulation.fleet_policies import FLEET_POLICIES
from rover_kf.simulation.policies import POLICIES
from rover_kf.simulation.traces import Traces

RIVALS = ("optimus", "tiresias", "pollux")
"""Whose completion times ours are set against, with intervals."""

PUBLISHED = {"workload-6": {"optimus": 5302.0, "tiresias": 3470.0}}
"""Average completion, seconds, that the authors' own simulator has for a workload of their traces
(Qiao et al., OSDI 2021, petuum/adaptdl): ours is held to it."""
CLOSE = 0.05
"""Deviation from what is published that is accepted."""


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--traces", type=pathlib.Path, required=True, help="folder; docs/scaling.md says of what"
    )
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("build/bench/scaling.json")
    )
    parser.add_argument(
        "--published",
        action="store_true",
        help="end with 1 where the simulator is more than 5 %% off what its traces' authors have",
    )
    parser.add_argument("--seeds", type=int, default=200, help="splits for the model's error")
    for part in ("compute", "exchange"):
        parser.add_argument(
            f"--{part}",
            type=float,
            default=1.0,
            help="times that part of each step: other hardware",
        )
    arguments = parser.parse_args()
    found = traces.read(arguments.traces)
    if (arguments.compute, arguments.exchange) != (1.0, 1.0):
        tables = {
            name: comparison.on_other_hardware(table, arguments.compute, arguments.exchange)
            for name, table in found.tables.items()
        }
        found = dataclasses.replace(found, tables=tables)
    started = time.process_time()
    mape = _mape(found, arguments.seeds)
    fleet, averages = _fleet(found)
    published = _published(averages)
    result = {
        "times": {"compute": arguments.compute, "exchange": arguments.exchange},
        "cost_over_oracle": _single_jobs(found),
        "mape_4x": {model: errors["4"] for model, errors in mape.items() if "4" in errors},
        "mape": mape,
        "fleet": fleet,
        "published": published,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"{arguments.out}: {time.process_time() - started:.0f} s of processor time")
    far = [name for name, one in published.items() if abs(one["deviation"]) > CLOSE]
    if arguments.published and (far or not published):
        sys.exit(f"not within {CLOSE:.0%} of what is published: {', '.join(far) or 'not run'}")


def _mape(found: Traces, seeds: int) -> dict[str, dict[str, float]]:
    errors = {}
    print(f"\nstep time, median over {seeds} splits of the mean relative error, by factor")
    for model, table in found.tables.items():
        by_factor = step_time_errors(table, range(seeds))
        errors[model] = {str(factor): error for factor, error in by_factor.items()}
        cells = "  ".join(f"{factor}x {error:6.1%}" for factor, error in by_factor.items())
        print(f"  {model:14s} {cells}", flush=True)
    return errors


def _single_jobs(found: Traces) -> dict[str, dict[str, Any]]:
    results: dict[str, dict[str, Any]] = {}
    for restart, hours in comparison.HOURS.items():
        jobs = comparison.cases(found.tables.values(), restart, hours)
        print(f"\n{len(jobs)} jobs alone, a restart of {restart:.0f} s: cost over the oracle's")
        results[f"{restart:.0f}"] = row = {}
        for policy in POLICIES if jobs else ():
            summary = comparison.single_jobs(policy, jobs)
            row[policy] = dataclasses.asdict(summary)
            cells = "  ".join(f"{name} {value:6.3f}" for name, value in row[policy].items())
            print(f"  {policy:9s} {cells}", flush=True)
    return results


def _fleet(
    found: Traces,
) -> tuple[dict[str, dict[str, list[float]]], dict[str, dict[str, float]]]:
    """Columns by policy, and average completion by workload and policy."""
    workloads = fleet_policies.runnable(found)
    if not workloads:
        print("\nno workloads: nothing to run on a cluster")
        return {}, {}
    shape = fleet_policies.shape_for(found)
    print(f"\n{len(workloads)} workloads on {shape.nodes} nodes of {shape.per_node}")
    outcomes = fleet_policies.fleet(found, shape, workloads, FLEET_POLICIES)
    for policy, runs in outcomes.items():
        averages = "  ".join(f"{outcome.average_seconds:6.0f}" for outcome in runs)
        print(f"  {policy:9s} average completion s  {averages}", flush=True)
    for rival in RIVALS:
        _tell_savings(rival, workloads, outcomes)
    averages_of = {
        name: {policy: runs[index].average_seconds for policy, runs in outcomes.items()}
        for index, name in enumerate(workloads)
    }
    return {policy: _columns(runs) for policy, runs in outcomes.items()}, averages_of


def _published(averages: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """How far the simulator is from what others have of the same jobs, by workload and policy."""
    told = {}
    for workload in PUBLISHED.keys() & averages.keys():
        for policy, theirs in PUBLISHED[workload].items():
            here = averages[workload][policy]
            one = {"published_s": theirs, "here_s": here, "deviation": here / theirs - 1}
            told[f"{workload} {policy}"] = one
            print(f"  {workload} {policy}: {here:.0f} s, {one['deviation']:+.1%} of the published")
    return told


def _tell_savings(
    rival: str, workloads: Sequence[str], outcomes: Mapping[str, Sequence[FleetOutcome]]
) -> None:
    print(f"  rover's average completion is shorter than {rival}'s by (95 % by bootstrap of jobs):")
    for name, ours, theirs in zip(workloads, outcomes["rover"], outcomes[rival], strict=True):
        mean, low, high = comparison.saving_interval(ours, theirs)
        print(f"    {name:12s} {mean:6.0f} s  ({low:.0f} to {high:.0f})")


def _columns(runs: Sequence[FleetOutcome]) -> dict[str, list[float]]:
    return {
        "average_s": [outcome.average_seconds for outcome in runs],
        "p99_s": [outcome.p99_seconds for outcome in runs],
        "makespan_s": [outcome.makespan_seconds for outcome in runs],
        "gpu_hours": [outcome.replica_hours for outcome in runs],
    }


if __name__ == "__main__":
    main()
