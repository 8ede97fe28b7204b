# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The cap on what a persist takes from the network."""

from __future__ import annotations

import time

import hypothesis
import hypothesis.strategies as st
import pytest

from rover_kf.checkpoint.storage import rate_limit

SIZES = st.lists(st.tuples(st.integers(0, 10_000), st.floats(0, 3)), max_size=50)


@hypothesis.given(st.floats(1.0, 1e6), SIZES)
def test_no_stretch_of_time_exceeds_the_rate_by_more_than_a_burst(rate, pieces):
    """Whatever the pieces and the pauses between them: from any piece to any later one."""
    now, sent = 0.0, []
    tokens = rate_limit.full_bucket(rate, now=now)
    for count, pause in pieces:
        tokens, wait = rate_limit.consume(tokens, count, now=now)
        assert wait >= 0
        now += wait
        sent.append((now, count))
        now += pause
    for first in range(len(sent)):
        total = 0
        for at, count in sent[first:]:
            total += count
            allowed = rate * (at - sent[first][0] + rate_limit.BURST_SECONDS) + sent[first][1]
            assert total <= allowed * (1 + 1e-9) + 1e-3


def test_a_steady_stream_gets_the_whole_rate():
    """After the burst each piece waits for exactly its own share."""
    tokens, now = rate_limit.full_bucket(100.0, now=0.0), 0.0
    waits = []
    for _ in range(6):
        tokens, wait = rate_limit.consume(tokens, 50, now=now)
        now += wait
        waits.append(wait)
    assert waits == pytest.approx([0.5 - rate_limit.BURST_SECONDS, *[0.5] * 5])


def test_a_pause_gives_no_more_than_a_burst():
    """An hour of silence is not saved up."""
    tokens = rate_limit.full_bucket(100.0, now=0.0)
    tokens, wait = rate_limit.consume(tokens, 5, now=3600.0)
    assert wait == 0
    tokens, wait = rate_limit.consume(tokens, 25, now=3600.0)
    assert wait == 0.25


def _seconds(cap: rate_limit.RateLimiter, count: int) -> float:
    begun = time.monotonic()
    content = [memoryview(bytes(1000))] * count
    assert sum(len(piece) for piece in rate_limit.WaitClock(cap).throttle(content)) == count * 1000
    return time.monotonic() - begun


def test_a_cap_holds_back_unless_it_is_lifted_or_zero():
    """100 kB at 200 kB/s take 0.45 s (a burst is free); lifted, or with no cap, no time."""
    cap = rate_limit.RateLimiter(200_000)
    assert 0.4 < _seconds(cap, 100) < 25
    with cap.unlimited(), cap.unlimited():
        assert _seconds(cap, 10_000) < 25  # of the fifty that it would take
    assert _seconds(cap, 50) > 0.15
    assert _seconds(rate_limit.RateLimiter(0), 10_000) < 25


def test_who_waits_in_a_way_of_its_own_is_told_for_how_long():
    """1 MB at 200 kB/s: a burst is free, the rest is to be waited for; nothing where no cap is."""
    assert 4.8 < rate_limit.RateLimiter(200_000).reserve(1_000_000) <= 4.95
    assert rate_limit.RateLimiter(0).reserve(1_000_000) == 0
