# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Windows of throughput from the ranks' reports."""

from __future__ import annotations

from rover_kf.api.samples import StepReport, StepSample
from rover_kf.metrics.windows import MAX_WINDOWS, WARM_UP_STEPS, ThroughputWindows


def report(rank: int, step: int, seconds: float, *, round_number: int = 1) -> StepReport:
    sample = StepSample(step, 100 + step * 0.5, seconds, samples=8, save_seconds=0.1)
    return StepReport(rank, 2, round_number, (sample,))


def test_window_of_steady_steps():
    """Warm-up is dropped, the slowest rank decides, samples of all ranks count."""
    windows = ThroughputWindows(2.0)
    windows.begin(1, nodes=2, world_size=2)
    for step in range(1, 5 + WARM_UP_STEPS):
        windows.observe(report(0, step, 0.4))
        windows.observe(report(1, step, 0.5))
    (window,) = windows.closed
    assert (window.nodes, window.world_size, window.steps, window.samples) == (2, 2, 4, 64)
    assert (window.step_seconds, window.global_batch) == (0.5, 16)
    assert window.samples_per_second == 32
    assert round(window.save_seconds, 6) == 0.4


def test_the_close_of_the_open_window_is_foretold():
    """From the end of warm-up on, to the very step; the next one begins where the last closed."""
    windows, foretold = ThroughputWindows(1.8), {}
    windows.begin(1, nodes=2, world_size=2)
    for step in range(1, 12 + WARM_UP_STEPS):
        windows.observe(report(0, step, 0.5))
        windows.observe(report(1, step, 0.5))
        foretold[step] = windows.closes_at
    ends = [window.ended_at for window in windows.closed]
    assert ends == [103.5, 105.5]
    warm_up, first, second = list(foretold.values())[:3], foretold[4], foretold[7]
    assert (warm_up, first, second) == ([0, 0, 0], 103.5, 105.5)
    assert set(foretold.values()) == {0, 103.5, 105.5, 107.5}


def test_change_drops_the_open_window():
    """A window never spans two worlds; reports of another round are ignored."""
    windows = ThroughputWindows(1.0)
    windows.begin(1, nodes=2, world_size=2)
    for step in range(1, 5):
        windows.observe(report(0, step, 0.5))
        windows.observe(report(1, step, 0.5))
    windows.begin(2, nodes=2, world_size=2)
    assert windows.observe(report(0, 9, 0.5)) == ()
    assert windows.observe(report(1, 9, 0.5)) == ()
    assert windows.closed == ()
    assert windows.samples_per_second == 0


def test_what_another_size_showed_outlives_a_long_stay():
    """Beyond the most that are kept, windows of the size with the most go, oldest first."""
    windows = ThroughputWindows(0.9)
    for number, (nodes, steps) in enumerate([(1, 10), (2, 400)], start=1):
        windows.begin(number, nodes=nodes, world_size=2)
        for step in range(steps):
            windows.observe(report(0, step, 0.5, round_number=number))
            windows.observe(report(1, step, 0.5, round_number=number))
    closed = windows.closed
    assert len(closed) == MAX_WINDOWS
    assert [window.nodes for window in closed[:4]] == [1, 1, 1, 2]
    assert closed[-1].ended_at > closed[3].ended_at


def test_step_needs_every_rank():
    """A step that one rank has not reported does not count; a doubled report is one."""
    windows = ThroughputWindows(1.0)
    windows.begin(1, nodes=2, world_size=2)
    assert windows.observe(report(0, 1, 0.5)) == ()
    assert windows.observe(report(0, 1, 0.5)) == ()
    (whole,) = windows.observe(report(1, 1, 0.7))
    assert (whole.seconds, whole.samples) == (0.7, 16)


def test_steps_that_are_told_in_strides_all_count():
    """A chief whose workers are clients of their own tells now and then how far they are."""
    windows = ThroughputWindows(2.0)
    windows.begin(1, nodes=1, world_size=1)
    for step in range(3, 3 * (5 + WARM_UP_STEPS), 3):
        sample = StepSample(step, 100 + step * 0.2, 0.6, samples=24)
        windows.observe(StepReport(0, 1, 1, (sample,)))
    (window,) = windows.closed
    assert (window.steps, window.samples) == (12, 96)
    assert round(window.step_seconds, 6) == 0.2
    assert window.global_batch == 8
