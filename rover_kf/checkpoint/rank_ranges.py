# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks as a message names them: of hundreds, too, what stands behind them is still read; pure.

An Event has room for a thousand characters.
"""

from __future__ import annotations

from collections.abc import Sequence

_MAX_RUNS = 16
_MIN_RANGE = 3
"""Ranks in a row that are told by the first and the last one."""


def format_ranks(ranks: Sequence[int]) -> str:
    """Such as ``[0, 2, 8 to 511]``.

    Args:
        ranks: ascending.
    """
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    more = sum(map(len, runs[_MAX_RUNS:]))
    told = [
        f"{run[0]} to {run[-1]}" if len(run) >= _MIN_RANGE else ", ".join(map(str, run))
        for run in runs[:_MAX_RUNS]
    ]
    return f"[{', '.join(told)}{f' and {more} more' if more else ''}]"
