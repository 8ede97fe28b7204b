# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How much of the rest a worker holds, so that fast and slow ones end together; pure.

Guided self-scheduling (C. Polychronopoulos, D. Kuck: Guided Self-Scheduling, IEEE Transactions on
Computers, 1987), each worker's part by what it has done so far: whoever is three times slower holds
a third as much.
"""

from __future__ import annotations


def portion(left: int, *, own: int, used: int, workers: int, least: int) -> int:
    """Slots that a worker holds at most, those among them that it was lent before.

    Args:
        left: slots that nobody has used yet, lent or not.
        own: that the worker has used.
        used: that all workers have used.
        workers: how many they are.
        least: slots that it uses at once; it holds twice as many, to have some while it asks.
    """
    # As long as little is known, all are taken for alike.
    known = used >= 4 * workers * max(least, 1)
    part = left * own // used if known else left // workers
    return max(part // 2, 2 * max(least, 1))
