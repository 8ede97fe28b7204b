# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""When a job is looked at again: just after its windows close, and how often with many jobs."""

from __future__ import annotations

import dataclasses

import pytest
from memory_cluster import KEY, Clock, MemoryCluster, manifest
from prometheus_client import CollectorRegistry, generate_latest

from rover_kf.api import names
from rover_kf.history.store import SqlHistory
from rover_kf.reconcilers import planner, policy_source
from rover_kf.reconcilers.plan import Observed
from rover_kf.reconcilers.planner import RequeueIntervals
from rover_kf.reconcilers.reconciler import BOUNDS, DecisionLatency, Reconciler


@pytest.fixture
def trained():
    """A job after three windows of ten seconds, and its clock."""
    clock = Clock()
    cluster = MemoryCluster(clock)
    cluster.train(windows=3)
    return cluster, clock


def seen(cluster, **changed):
    job = cluster.get_job(KEY)
    status = dataclasses.replace(cluster._status(0), **changed)
    return Observed(job, (), status, policy_source.policy_from_job(job))


def test_the_next_look_is_when_the_next_window_has_closed(trained):
    """Three seconds into a window of ten: in seven, and a moment for the ranks' reports."""
    cluster, clock = trained
    clock.now += 3
    delay = planner.usual_delay(seen(cluster), RequeueIntervals(), moving=False)
    assert delay == pytest.approx(7 + planner.REPORTED_SECONDS)


def test_a_late_window_is_asked_for_again_and_again_then_less(trained):
    """At first every moment, and once it is later than steps are long, at growing distances."""
    cluster, clock = trained
    found = []
    for late in (1.0, 5.0, 20.0, 40.0):
        clock.now = cluster.windows[-1].ended_at + 10 + planner.REPORTED_SECONDS + late
        found.append(planner.seconds_until_window(cluster._status(0)))
    assert found == [planner.RETRY_LATE_SECONDS, planner.RETRY_LATE_SECONDS, 10.0, 20.0]


def test_without_a_window_of_this_world_half_a_window_is_waited(trained):
    """After a change of the world, or in a recovery, nobody knows when the next one closes."""
    cluster, _ = trained
    for unknown in ({"nodes": 3}, {"phase": "recovering"}, {"windows": ()}):
        assert (
            planner.usual_delay(seen(cluster, **unknown), RequeueIntervals(), moving=False) == 5.0
        )


def test_the_coordinator_s_word_goes_before_what_the_last_window_was(trained):
    """Also in a world of which no window has closed yet."""
    cluster, clock = trained
    found = seen(cluster, nodes=3, expected_nodes=3, window_closes=clock() + 4)
    assert planner.usual_delay(found, RequeueIntervals(), moving=False) == pytest.approx(
        4 + planner.REPORTED_SECONDS
    )


def test_a_change_is_looked_after_until_the_world_stands(trained):
    """Every two seconds while it forms; then its windows are waited for as ever."""
    cluster, _ = trained
    assert (
        planner.usual_delay(seen(cluster, expected_nodes=3), RequeueIntervals(), moving=True)
        == planner.MOVING_SECONDS
    )
    assert (
        planner.usual_delay(seen(cluster), RequeueIntervals(), moving=True) > planner.MOVING_SECONDS
    )


def test_looks_between_windows_are_evenly_spread_and_fewer_with_many_jobs(trained):
    """A window of a minute is looked at twice; with five thousand jobs when it has closed."""
    cluster, _ = trained
    last = cluster.windows[-1]
    cluster.windows[-1] = dataclasses.replace(last, started_at=last.ended_at - 59.5)
    whole = 59.5 + planner.REPORTED_SECONDS
    few, many = (
        planner.usual_delay(seen(cluster), RequeueIntervals(jobs), moving=False)
        for jobs in (10, 5000)
    )
    assert few == pytest.approx(whole / 2)
    assert many == pytest.approx(whole)


def test_progress_of_many_jobs_is_written_less_often(trained):
    """Eight writes a second over all of them, whatever their number; a few: once a window."""
    assert RequeueIntervals(10).write_seconds(60.0) == 60.0
    assert [jobs / RequeueIntervals(jobs).write_seconds(60.0) for jobs in (1000, 5000)] == [
        planner.WRITES
    ] * 2
    cluster, clock = trained
    cluster.edit({"metadata": {"annotations": {f"{names.PREFIX}scaling.mode": "off"}}})
    with SqlHistory("sqlite://") as history:
        reconcilers = Reconciler(cluster, history, clock=clock, jobs=lambda: 800)
        reconcilers.run_once(KEY)
        before = cluster.patches
        for _ in range(9):
            cluster.train()
            reconcilers.run_once(KEY)
        assert cluster.patches == before
        cluster.train()
        reconcilers.run_once(KEY)
        assert cluster.patches == before + 1


def test_each_decision_is_counted_once(trained):
    """From the close of the window that it is about; a look without a new window counts none."""
    cluster, clock = trained
    registry = CollectorRegistry()
    times = DecisionLatency(registry)
    with SqlHistory("sqlite://") as history:
        reconcilers = Reconciler(cluster, history, clock=clock, latency=times)
        clock.now += 1.6
        reconcilers.run_once(KEY)
        reconcilers.run_once(KEY)
    lines = generate_latest(registry).decode().splitlines()
    assert "rover_kf_decision_seconds_count 1.0" in lines
    assert 'rover_kf_decision_seconds_bucket{le="1.5"} 0.0' in lines
    assert 'rover_kf_decision_seconds_bucket{le="1.75"} 1.0' in lines
    assert len([line for line in lines if "_bucket" in line]) == len(BOUNDS) + 1


def test_a_decision_that_was_not_written_yet_is_not_counted_again():
    """Of many jobs progress is written seldom: later looks judge the window that was judged."""
    clock, registry = Clock(), CollectorRegistry()
    times = DecisionLatency(registry)
    bounds = {f"{names.PREFIX}scaling.min": "2", f"{names.PREFIX}scaling.max": "2"}
    cluster = MemoryCluster(clock, manifest(annotations=bounds))
    cluster.train(windows=3)
    with SqlHistory("sqlite://") as history:
        reconcilers = Reconciler(cluster, history, clock=clock, jobs=lambda: 8000, latency=times)
        reconcilers.run_once(KEY)
        cluster.train()
        before = cluster.patches
        for _ in range(3):
            reconcilers.run_once(KEY)
            clock.now += 3
        assert cluster.patches == before
        assert registry.get_sample_value("rover_kf_decision_seconds_count") == 2
        cluster.manifest = None
        reconcilers.run_once(KEY)
    assert not times._counted_windows


def test_what_a_look_took_is_not_waited_for_again(trained):
    """The next window closes when it was said to, however long the writes took."""
    cluster, clock = trained
    cluster.edit({"metadata": {"annotations": {f"{names.PREFIX}scaling.mode": "off"}}})
    usual = planner.usual_delay(seen(cluster), RequeueIntervals(), moving=False)

    def slowly(_):
        clock.now += 1.5

    cluster._point = slowly
    with SqlHistory("sqlite://") as history:
        tick = Reconciler(cluster, history, clock=clock).run_once(KEY)
    assert cluster.patches == 1
    assert tick.delay == pytest.approx(usual - 3.0)
