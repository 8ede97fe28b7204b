# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Promises of the allocator for any jobs and any capacity."""

from __future__ import annotations

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from rover_kf.scaling.fair_sharing import Claim, allocate


@st.composite
def claims(draw):
    """Jobs whose throughput grows with replicas, ever less."""
    found = []
    for i in range(draw(st.integers(1, 8))):
        fixed = draw(st.floats(0.0, 1.0))
        sizes = sorted(draw(st.sets(st.integers(1, 16), min_size=1, max_size=6)))
        found.append(
            Claim(
                f"job-{i}",
                {size: 1.0 / (fixed + 1.0 / size) for size in sizes},
                work=draw(st.floats(1.0, 1e5)),
                present=draw(st.sampled_from([0, *sizes])),
                weight=draw(st.floats(0.1, 10.0)),
                restart_seconds=draw(st.floats(0.0, 300.0)),
                waited=draw(st.floats(0.0, 1e4)),
            )
        )
    return found


@settings(max_examples=60, deadline=None)
@given(claims(), st.integers(0, 48))
def test_within_capacity_and_allowed(jobs, capacity):
    """Each job has an allowed size or none, and together they fit."""
    found = allocate(jobs, capacity)
    assert set(found) == {job.name for job in jobs}
    assert sum(found.values()) <= capacity
    for job in jobs:
        assert found[job.name] == 0 or found[job.name] in job.rates


@settings(max_examples=60, deadline=None)
@given(claims(), st.integers(0, 48))
def test_no_room_is_left_that_a_job_would_gain_by(jobs, capacity):
    """Work-conserving: nobody waits who fits, and no step up that fits is worth anything."""
    found = allocate(jobs, capacity)
    free = capacity - sum(found.values())
    for job in jobs:
        size = found[job.name]
        if not size:
            assert job.min_replicas > free
        for larger in job.rates:
            if size and size < larger <= size + free:
                assert job.value(larger) <= job.value(size)


@settings(max_examples=60, deadline=None)
@given(claims(), st.integers(0, 48))
def test_all_shrink_before_one_waits(jobs, capacity):
    """While all fewest replicas fit together, every job has at least its own."""
    found = allocate(jobs, capacity)
    if sum(job.min_replicas for job in jobs) <= capacity:
        assert all(found[job.name] >= job.min_replicas for job in jobs)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 6), st.integers(1, 24), st.floats(1.0, 20.0))
def test_more_priority_never_means_fewer_replicas(data, count, capacity, factor):
    """Jobs that may have any number: who counts for more gets no less than before."""
    sizes = range(1, 9)
    jobs = [
        Claim(
            f"job-{i}",
            {k: 1.0 / (data.draw(st.just(0.1 * (i + 1))) + 1.0 / k) for k in sizes},
            work=data.draw(st.floats(10.0, 1e4)),
            restart_seconds=0.0,
        )
        for i in range(count)
    ]
    before = allocate(jobs, capacity)["job-0"]
    raised = dataclasses.replace(jobs[0], weight=jobs[0].weight * factor)
    assert allocate([raised, *jobs[1:]], capacity)["job-0"] >= before


def test_a_small_gain_moves_nobody():
    """A twentieth more throughput is not worth a restart in a cluster that changes all the time."""
    rates = {4: 1.0, 5: 1.03}
    job = Claim("a", rates, work=1e6, present=4, restart_seconds=60.0)
    assert allocate([job], 8) == {"a": 4}
    cheap = dataclasses.replace(job, restart_seconds=1.0)
    assert allocate([cheap], 8) == {"a": 5}
