# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A cluster of one node on a trace small enough to reckon by hand, and invariants on a larger."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.scaling_bench import comparison
from rover_kf.simulation import fleet_policies, traces
from rover_kf.simulation.cluster_simulation import ClusterShape, run_fleet
from rover_kf.simulation.fleet_policies import FLEET_POLICIES
from tests.support.simulated import step_tables

NODE = ClusterShape(nodes=1, per_node=4)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A short and a long program, and workloads of them."""
    folder = tmp_path_factory.mktemp("traces")
    step_tables.write(folder, "short", epochs={32: [1000]})
    step_tables.write(folder, "long", epochs={32: [40000]})
    pair = [("a", 10, "long", 4, 32), ("b", 70, "short", 2, 32)]
    step_tables.write_workload(folder, "workload-1", pair)
    many = [
        (f"{kind}-{i}", 97 * i, kind, 2 + i % 3, 32)
        for i, kind in enumerate(["short", "long", "short", "short"] * 6)
    ]
    step_tables.write_workload(folder, "workload-2", many)
    return traces.read(folder)


def seconds(ranks):
    return step_tables.step_seconds(1, ranks, 32 / ranks)


def test_static_waits_for_the_long_job(found):
    """By hand: a starts at 60 with 30 s of restart; b starts in the interval after a's end."""
    outcome = run_fleet(found.workloads["workload-1"], found, FLEET_POLICIES["static"](NODE), NODE)
    a_ends = 60 + 30 + 40000 * seconds(4)
    b_starts = (a_ends // 60 + 1) * 60
    b_ends = b_starts + 30 + 1000 * seconds(2)
    assert outcome.completion_seconds == pytest.approx({"a": a_ends - 10, "b": b_ends - 70})
    assert outcome.makespan_seconds == pytest.approx(b_ends)
    hours = ((a_ends - 60) * 4 + (b_ends - b_starts) * 2) / 3600
    assert outcome.replica_hours == pytest.approx(hours)


def test_ours_shrinks_the_long_job_instead(found):
    """b gets replicas in the first interval after it came, and a grows back when b has ended."""
    outcome = run_fleet(found.workloads["workload-1"], found, FLEET_POLICIES["oracle"](NODE), NODE)
    assert outcome.completion_seconds["b"] <= 50 + 30 + 1000 * seconds(1)
    alone = 50 + 30 + 40000 * seconds(4)
    assert outcome.completion_seconds["a"] <= alone + outcome.completion_seconds["b"] + 120


@pytest.mark.parametrize("policy", sorted(FLEET_POLICIES))
def test_every_policy_ends_every_job_within_the_capacity(found, policy):
    """All jobs end, none before its work can be done, and no replica-second is made up."""
    shape = dataclasses.replace(NODE, nodes=2)
    (outcome,) = fleet_policies.fleet(found, shape, ["workload-2"], [policy])[policy]
    assert len(outcome.completion_seconds) == 24
    for name, took in outcome.completion_seconds.items():
        steps = 40000 if name.startswith("long") else 1000
        assert took >= steps * min(seconds(4), step_tables.step_seconds(2, 8, 8))
    assert outcome.replica_hours * 3600 <= outcome.makespan_seconds * shape.capacity
    print(policy, round(outcome.average_seconds), round(outcome.restarts, 1))


def test_ours_ends_jobs_sooner_than_rigid_ones(found):
    """Learned throughput and shared room, against users' sizes in two queues; by any draw."""
    shape = dataclasses.replace(NODE, nodes=2)
    runs = fleet_policies.fleet(found, shape, ["workload-2"], ["rover", "tiresias"])
    mean, low, high = comparison.saving_interval(runs["rover"][0], runs["tiresias"][0])
    print(round(low), round(mean), round(high))
    assert mean > 0
    assert low < mean < high


def test_ours_is_the_controllers_own_way(found):
    """A job that has the cluster gives replicas up for one that comes, is not restarted for less,
    and grows back by its own windows once there is room: as the reconcilers do it."""
    policy, seen = FLEET_POLICIES["rover"](NODE), []

    class Watched:
        packs = policy.packs

        def allocate(self, jobs, now):
            sizes = policy.allocate(jobs, now)
            seen.append(dict(sizes))
            return sizes

    run_fleet(found.workloads["workload-1"], found, Watched(), NODE)
    with_b = [sizes for sizes in seen if "b" in sizes]
    assert [sizes["a"] for sizes in seen[:1]] == [4]
    assert with_b[0]["b"] >= 1, "nobody waits while there is room for all"
    assert with_b[0]["a"] + with_b[0]["b"] <= 4
    after = [sizes["a"] for sizes in seen[seen.index(with_b[-1]) + 1 :]]
    assert after[0] < 4, "it grows when its own windows say that it pays"
    assert max(after) == 4


def test_ours_learns_from_the_run_alone(found):
    """What an earlier run of the same program has shown is not known to a later one."""
    policy = FLEET_POLICIES["rover"](NODE)
    arrivals = found.workloads["workload-1"]
    again = (*arrivals, dataclasses.replace(arrivals[0], name="c", arrived_at=5000.0))
    run_fleet(again, found, policy, NODE)
    windows = policy.windows("c")
    assert windows
    assert all(window.started_at >= 5000.0 for window in windows)


def test_failures_cost_work_and_restarts(found):
    """With a node that fails twelve times an hour the same jobs take longer, and still end."""
    policy = FLEET_POLICIES["static"]
    calm = run_fleet(found.workloads["workload-1"], found, policy(NODE), NODE)
    rough = dataclasses.replace(NODE, node_failures_a_day=288.0, seed=4)
    outcome = run_fleet(found.workloads["workload-1"], found, policy(rough), rough)
    assert outcome.makespan_seconds > calm.makespan_seconds + 60


def test_places_are_kept_and_packed():
    """Who keeps its number keeps its place; whole nodes go to the large, gaps to the small."""
    placing = ClusterShape(nodes=3, per_node=4)
    first = placing.assign({"small": 1, "large": 8, "mid": 3}, {}, packs=True)
    assert sorted(count for _, count in first["large"]) == [4, 4]
    assert first["small"][0][0] == first["mid"][0][0]
    second = placing.assign({"large": 4, "mid": 3, "small": 1, "new": 4}, first, packs=True)
    assert (second["mid"], second["small"]) == (first["mid"], first["small"])
    assert len(second["new"]) == 1
