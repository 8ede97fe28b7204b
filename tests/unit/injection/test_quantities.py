# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Quantities and durations."""

from __future__ import annotations

import decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rover_kf.injection import quantities


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4Gi", 4 * 2**30),
        ("500m", decimal.Decimal("0.5")),
        ("1.5Mi", 1572864),
        ("2M", 2_000_000),
        ("1e3", 1000),
        ("1E3", 1000),
        ("2E", 2 * 10**18),
        ("128", 128),
        (".5", decimal.Decimal("0.5")),
        (3, 3),
        (1.5, decimal.Decimal("1.5")),
        ("-1Ki", -1024),
    ],
)
def test_quantities_are_read_as_kubernetes_writes_them(text, value):
    """Binary, decimal and exponent suffixes, and plain numbers of a manifest, give their value."""
    assert quantities.parse(text) == value


@pytest.mark.parametrize("text", ["", "4Gb", "Gi", "1 Gi", "1e", "0x10", "four", None, True, [1]])
def test_what_is_no_quantity_is_refused(text):
    """Anything else raises ValueError with the text."""
    with pytest.raises(ValueError, match="no quantity"):
        quantities.parse(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("60", 60), ("5s", 5), ("2m", 120), ("1h", 3600), ("500ms", 0.5), (7, 7)]
)
def test_durations(text, seconds):
    """Plain seconds and the units ms, s, m and h."""
    assert quantities.parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "-5s", "5 s", "5d", "nan", "inf", None, True])
def test_what_is_no_duration_is_refused(text):
    """Negative, unknown units and what is no number raise ValueError."""
    with pytest.raises(ValueError, match="no duration"):
        quantities.parse_seconds(text)


@given(st.integers(min_value=0, max_value=2**62))
def test_bytes_survive_being_written_and_read(count):
    """format_bytes and parse_bytes are inverse."""
    assert quantities.parse_bytes(quantities.format_bytes(count)) == count
