# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks in messages."""

from __future__ import annotations

import pytest

from rover_kf.checkpoint import rank_ranges


@pytest.mark.parametrize(
    ("ranks", "shown"),
    [
        ((), "[]"),
        ((1,), "[1]"),
        ((1, 2), "[1, 2]"),
        ((0, 2, *range(8, 512)), "[0, 2, 8 to 511]"),
        (range(0, 40, 2), f"[{', '.join(map(str, range(0, 32, 2)))} and 4 more]"),
    ],
)
def test_ranks_in_a_row_are_told_by_their_ends(ranks, shown):
    """And of many that are not, the first ones."""
    assert rank_ranges.format_ranks(tuple(ranks)) == shown
