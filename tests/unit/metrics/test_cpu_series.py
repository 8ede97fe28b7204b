# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How busy a container was and how often it was held back: of counts, over one window."""

from __future__ import annotations

import dataclasses

import pytest

from rover_kf.api.faults.limit_raises import CpuCount
from rover_kf.launcher import round_runner
from rover_kf.metrics.resource_usage import MAX_COUNTS, MAX_PODS, CpuSeries, PodCpuSeries

FIRST = CpuCount(measured_at=100.0, used=50.0, throttled=7, period=0.1, limit=0.5)


def count(seconds, *, cores=0.4, per_second=8, limit=0.5):
    """The kernel's counts so many seconds later."""
    return CpuCount(
        FIRST.measured_at + seconds,
        FIRST.used + cores * seconds,
        FIRST.throttled + int(per_second * seconds),
        FIRST.period,
        limit,
    )


def test_the_newest_window_is_told_of():
    """What was before it is forgotten; less than a window is nothing."""
    series = CpuSeries(10.0)
    for second in range(11):
        assert series.usage() is None
        series.add(count(float(second)))
    use = series.usage()
    assert (use.limit, use.seconds) == (0.5, 10.0)
    assert (use.cores, use.throttled) == (pytest.approx(0.4), pytest.approx(0.8))
    idle = count(10.0)
    for second in range(1, 12):
        series.add(dataclasses.replace(idle, measured_at=idle.measured_at + second))
    assert (series.usage().cores, series.usage().throttled) == (0.0, 0.0)


def test_another_limit_or_container_begins_anew():
    """Counts of two limits say nothing of either; no limit is nothing to be short of."""
    series = CpuSeries(2.0)

    def told(*counts):
        for one in counts:
            series.add(one)
        return series.usage()

    assert told(count(0.0), count(2.0)) is not None
    assert told(count(4.0, limit=1.0)) is None
    assert told(count(6.0, limit=1.0)).limit == 1.0
    assert told(dataclasses.replace(count(8.0, limit=1.0), used=0.1)) is None
    assert told(dataclasses.replace(count(10.0, limit=1.0), used=0.2)) is not None
    assert told(None) is None


def test_of_a_world_those_held_back_most_are_told():
    """Each pod by its own counts; those without a limit not at all; none after a new round."""
    world = PodCpuSeries(10.0)
    for second in range(11):
        for index in range(MAX_PODS + 2):
            world.add(f"w-{index}", count(float(second), per_second=index))
        world.add("free", None)
    told = world.usages()
    assert [one.pod for one in told] == [f"w-{index}" for index in range(MAX_PODS + 1, 1, -1)]
    assert told[0].use.throttled == pytest.approx(0.9)
    world.begin()
    assert world.usages() == ()


def test_so_many_counts_are_kept_of_any_window():
    """Of an hour, too, told of by counts of every second."""
    series = CpuSeries(3600.0)
    for second in range(4000):
        series.add(count(float(second)))
    assert len(series._counts) <= 1.1 * MAX_COUNTS
    assert series.usage().seconds == pytest.approx(3600.0, rel=0.05)
    assert series.usage().throttled == pytest.approx(0.8, rel=0.01)


def test_both_versions_of_control_groups_are_read(tmp_path):
    """Used seconds of cores, periods that ended early, and the limit; none without a limit."""
    assert round_runner.read_cpu_count(tmp_path) is None
    cpu, used = tmp_path / "cpu", tmp_path / "cpuacct"
    cpu.mkdir()
    used.mkdir()
    (cpu / "cpu.cfs_quota_us").write_text("20000\n")
    (cpu / "cpu.cfs_period_us").write_text("100000\n")
    (cpu / "cpu.stat").write_text("nr_periods 40\nnr_throttled 30\nthrottled_time 123\n")
    (used / "cpuacct.usage").write_text("2500000000\n")
    first = round_runner.read_cpu_count(tmp_path)
    assert (first.limit, first.throttled) == (0.2, 30)
    assert (first.used, first.period) == (pytest.approx(2.5), pytest.approx(0.1))
    (cpu / "cpu.cfs_quota_us").write_text("-1\n")
    assert round_runner.read_cpu_count(tmp_path) is None
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    stat = "usage_usec 700000\nuser_usec 1\nnr_periods 9\nnr_throttled 4\nthrottled_usec 5\n"
    (tmp_path / "cpu.stat").write_text(stat)
    second = round_runner.read_cpu_count(tmp_path)
    assert (second.limit, second.throttled) == (1.5, 4)
    assert second.used == pytest.approx(0.7)
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert round_runner.read_cpu_count(tmp_path) is None
