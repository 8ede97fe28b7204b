# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What ranks take, put together by pod, and how a process sees what it takes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rover_kf.api.samples import StepReport
from rover_kf.metrics.resource_usage import ResourcePeaks
from rover_kf.trainer.resource_usage import ResourceMeter

MIB = 1 << 20
HOLD = "import sys; x = bytearray(b'1') * (64 << 20); print(flush=True); sys.stdin.read()"


def report(rank, memory, files=0, cores=0.0):
    return StepReport(rank, 4, 1, (), memory=memory, file_memory=files, cores=cores)


def test_the_worst_pod_counts():
    """Ranks of a pod are summed, files they map once; peaks stay over smaller worlds."""
    usage = ResourcePeaks()
    usage.begin(2, 4)
    for rank, memory, files, cores in ((0, 10, 5, 1.0), (1, 20, 7, 0.5), (2, 40, 3, 0.25)):
        usage.on_report(report(rank, memory, files, cores))
    assert (usage.memory, usage.cores) == (43, 1.5)
    usage.on_report(report(3, 1, 3))
    assert usage.memory == 44
    usage.on_report(report(3, 0))
    usage.begin(1, 1)
    usage.on_report(report(0, 30))
    assert (usage.memory, usage.cores) == (44, 1.5)


def test_files_are_no_part_of_a_trend():
    """A limit is not reached by them; and one rank of a pod tells for all, once all were heard."""
    usage = ResourcePeaks()
    usage.begin(2, 4)
    for at in range(0, 100, 2):
        for rank, memory in ((0, 500 + at), (1, 0), (2, 400), (3, 0)):
            usage.on_report(report(rank, memory * MIB, 300 * MIB if memory else 0), float(at))
    found = usage.series.trend()
    assert found is not None
    assert found.memory == pytest.approx(596 * MIB, abs=4 * MIB)
    assert usage.memory == 898 * MIB


def looks(memory_at, *, until=200.0, every=1.0):
    """The trend after looks at one pod of one rank."""
    usage = ResourcePeaks()
    usage.begin(1, 1)
    for index in range(int(until / every)):
        usage.on_report(report(0, int(memory_at(index * every))), index * every)
    return usage.series.trend()


def test_a_trend_is_told_of_what_grows():
    """A leak's slope, whatever single looks say; looks are thinned, and all of the time counts."""
    found = looks(lambda at: (500 + at + 40 * (at % 37 == 0)) * MIB)
    assert found is not None
    assert found.per_second == pytest.approx(MIB, rel=0.05)
    assert found.memory == pytest.approx(700 * MIB, rel=0.02)
    assert found.rising > 0.9
    assert found.seconds == pytest.approx(196, abs=4)


@pytest.mark.parametrize(
    "memory_at",
    [
        lambda _: 500 * MIB,
        lambda at: min(at, 80) * MIB,
        lambda at: (500 + at % 50) * MIB,
    ],
)
def test_what_does_not_grow_on_has_no_trend(memory_at):
    """The same all the time, a plateau, and what falls again at each epoch's end."""
    found = looks(memory_at)
    assert found is not None
    assert found.per_second <= 0.0 or found.rising < 0.7


def test_too_little_is_no_trend_and_a_new_world_begins_anew():
    """Twenty looks at two seconds' distance are the least; other processes are another series."""
    assert looks(lambda at: at * MIB, until=36.0) is None
    usage = ResourcePeaks()
    usage.begin(1, 1)
    for at in range(0, 100, 2):
        usage.on_report(report(0, at * MIB), float(at))
    assert usage.series.trend() is not None
    usage.begin(1, 1)
    assert usage.series.trend() is None


def test_a_process_sees_what_it_takes():
    """Its own memory, and a child's beside it."""
    before = ResourceMeter().measure()
    assert before.memory > 10 * MIB
    assert before.files > 0
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        child.stdout.readline()
        more = ResourceMeter().measure().memory - before.memory
        child.stdin.close()
    assert 60 * MIB < more < 160 * MIB


def test_another_rank_tells_what_the_container_holds():
    """Once for all ranks; cores are each one's own."""
    seen = ResourceMeter(reports_container=False).measure()
    assert (seen.memory, seen.files) == (0, 0)


def test_cores_are_those_between_two_looks():
    """A process that computes keeps busy what it was given; asked again at once, the same."""
    meter = ResourceMeter()
    first = os.times()
    while os.times().elapsed - first.elapsed < 2.2:
        sum(range(1000))
    spent = sum(os.times()[:2]) - sum(first[:2])
    seen = meter.measure()
    assert seen.cores > 0.5 * spent / (os.times().elapsed - first.elapsed)
    assert meter.measure() is seen
