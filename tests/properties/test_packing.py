# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Windows of a long run are packed: fewer, and they say the same of the run."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rover_kf.api.samples import Throughput
from rover_kf.history.recorder import downsample
from rover_kf.scaling import throughput

SECONDS, MOST = 60.0, 64
modest = settings(max_examples=60, deadline=None)

stretches = st.lists(
    st.tuples(
        st.integers(1, 4),
        st.sampled_from((32, 64, 0)),
        st.floats(0.5, 2.0),
        st.integers(1, 60),
        st.floats(0, 600),
    ),
    min_size=1,
    max_size=9,
)
"""Nodes, samples a rank and step, seconds of a step, windows, seconds of pause after them."""


def course(rows) -> tuple[Throughput, ...]:
    """The windows of a run."""
    found, now = [], 1000.0
    for nodes, each, step_seconds, count, pause in rows:
        for number in range(count):
            # A tenth of them is slow, and each is a bit of its own.
            pace = step_seconds * (3.0 if number % 10 == 9 else 1.0 + 0.01 * (number % 3))
            steps, batch = max(1, int(SECONDS / pace)), each * 2 * nodes
            found.append(
                Throughput(
                    now, now + SECONDS, nodes, 2 * nodes, steps, batch * steps, pace, float(batch),
                    wait_fraction=0.1 * (number % 4), save_seconds=0.5 * (number % 2),
                )
            )  # fmt: skip
            now += SECONDS
        now += pause
    return tuple(found)


def sums(windows):
    """What must not change: by world, steps and samples; in all, time blocked."""
    steps: dict[tuple[int, int], list[int]] = {}
    for window in windows:
        total = steps.setdefault((window.nodes, window.world_size), [0, 0])
        total[0] += window.steps
        total[1] += window.samples
    return steps, sum(window.save_seconds for window in windows)


def packed(whole, every=20) -> tuple[Throughput, ...]:
    """As a record comes to hold them, so many at a look."""
    kept: tuple[Throughput, ...] = ()
    for at in range(0, len(whole), every):
        kept = downsample((*kept, *whole[at : at + every]), MOST)
    return kept


@modest
@given(stretches, st.integers(1, 50))
def test_sums_and_worlds_are_kept(rows, every):
    """However many come at a time; and nothing that was packed overlaps what comes after it."""
    whole = course(rows)
    kept = packed(whole, every)
    assert len(kept) <= MOST
    assert sums(kept) == sums(whole)
    assert all(one.ended_at <= other.started_at for one, other in itertools.pairwise(kept))
    assert (kept[0].started_at, kept[-1].ended_at) == (whole[0].started_at, whole[-1].ended_at)
    if len(whole) <= MOST:
        assert kept == whole
    assert kept[-MOST // 4 :] == whole[-MOST // 4 :]
    paces = {(window.world_size, window.step_seconds) for window in whole}
    for window in kept:
        assert window.global_batch == pytest.approx(window.samples / window.steps)
        assert (window.world_size, window.step_seconds) in paces
        assert 0.0 <= window.wait_fraction <= 0.3 + 1e-9


@modest
@given(stretches)
def test_what_each_size_showed_is_not_forgotten(rows):
    """Of each world and batch, wherever in the run it was seen, the newest windows tell the same
    pace as before; a slow one among them is not what counts."""
    once = {(nodes, each or 16): rest for nodes, each, *rest in rows}
    whole = course([(*key, *rest) for key, rest in once.items()])
    before, after = (
        throughput.compute_medians(whole),
        throughput.compute_medians(packed(whole)),
    )
    assert [one.world_size for one in after] == [one.world_size for one in before]
    for one, other in zip(before, after, strict=True):
        assert other.global_batch == pytest.approx(one.global_batch)
        assert other.seconds == pytest.approx(one.seconds, rel=0.03)


def test_where_no_neighbours_are_alike_every_world_stays_known():
    """A job that changes with each window: the bound holds, and no size is forgotten."""
    rows = [(1 + number % 3, 32, 1.0, 1, 0.0) for number in range(500)]
    rows[40] = (4, 32, 1.0, 1, 0.0)
    kept = packed(course(rows))
    assert len(kept) == MOST
    assert {window.nodes for window in kept} == {1, 2, 3, 4}


def test_weeks_are_known_evenly():
    """No window is of much more than its share of the time, and an outage is in none; a change of
    pace is seen where it was."""
    rows = [(2, 32, 1.0, 2000, 50_000.0), (2, 32, 1.0, 2000, 0.0), (2, 32, 1.6, 2000, 0.0)]
    whole = course(rows)
    kept = packed(whole)
    assert whole[1999].ended_at in {window.ended_at for window in kept}
    longest = max(window.ended_at - window.started_at for window in kept)
    assert longest < SECONDS * len(whole) / 10
    before = [window for window in kept if window.ended_at <= whole[3999].ended_at]
    after = [window for window in kept if window.started_at >= whole[4000].started_at]
    assert len(before) + len(after) >= len(kept) - 1
    assert all(window.step_seconds != pytest.approx(1.6, rel=0.05) for window in before)
    assert all(window.step_seconds >= 1.6 for window in after)
