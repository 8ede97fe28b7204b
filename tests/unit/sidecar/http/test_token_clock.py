# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whose clock is believed: a node's may be wrong, the API server's word in a token is not."""

from __future__ import annotations

import time

import jwt
import pytest

from rover_kf.sidecar.http.token_clock import TokenClock, parse_lifetime
from rover_kf.system.steady_clock import MonotonicWallClock
from tests.support.pods import checkpoint_pod

KEY = "the API server's, thirty-two bytes"
HOUR = 3600.0
CLOSE_SECONDS = 20.0
"""Less than a clock is ever wrong by here."""


def token(issued: float, lasts: float = HOUR) -> str:
    return jwt.encode({"iat": int(issued), "exp": int(issued + lasts)}, KEY, algorithm="HS256")


@pytest.fixture
def settings(tmp_path):
    return checkpoint_pod.settings_of(tmp_path, auth="serviceaccount")


@pytest.mark.parametrize(
    ("wrong_by", "wanted"), [(0.0, 60.0), (HOUR, 0.0), (-HOUR, 0.0), (-30.0, 30.0)]
)
def test_a_clock_that_the_token_contradicts_is_not_believed(
    settings, monkeypatch, wrong_by, wanted
):
    """The token was issued a minute ago: an hour ahead it would have ended, behind not begun."""
    issued = time.time() - 60
    (settings.token_home / "token").write_text(token(issued))
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + wrong_by)
    found = TokenClock(settings)
    assert 0.0 <= found.now() - (int(issued) + wanted) <= CLOSE_SECONDS
    assert found.pod_started_at() == int(issued)


def test_a_jump_is_not_seen(settings, monkeypatch):
    """Once begun the clock goes on by itself."""
    (settings.token_home / "token").write_text(token(time.time() - 60))
    clocks = [TokenClock(settings), MonotonicWallClock()]
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() - 600)
    assert all(abs(clock.now() - wall()) < CLOSE_SECONDS for clock in clocks)


@pytest.mark.parametrize("text", ["", "secret", "a.b.c", "a.bm90IGpzb24.c", "a.e30.c"])
def test_what_is_no_token_says_nothing(settings, text):
    """Then the machine's own clock is all there is."""
    assert parse_lifetime(text) is None
    (settings.token_home / "token").write_text(text)
    assert abs(TokenClock(settings).now() - time.time()) < CLOSE_SECONDS


def test_no_token(settings):
    """Not mounted yet, or none of that kind."""
    assert abs(TokenClock(settings).pod_started_at() - time.time()) < CLOSE_SECONDS
