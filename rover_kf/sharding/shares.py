# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How many samples of a batch each rank takes, so that all are done at the same time."""

from __future__ import annotations

from collections.abc import Sequence

from rover_kf import errors


def shares(size: int, costs: Sequence[int], *, least: int, most: int) -> tuple[int, ...]:
    """The cut under which the last rank is done soonest; whole numbers in, so all ranks agree.

    Args:
        size: of the batch, in samples.
        costs: nanoseconds that a sample takes each rank.
        least: samples of every rank.
        most: samples of any rank.

    Raises:
        InputError: no cut keeps these bounds, or a cost is below 1.
    """
    if min(costs) < 1:
        raise errors.InputError(f"a sample costs a rank {min(costs)} ns; 1 or more is needed")
    if not len(costs) * least <= size <= len(costs) * most:
        raise errors.InputError(
            f"{size} samples for {len(costs)} ranks, {least} to {most} each: no such cut"
        )

    def within(time: int) -> list[int]:
        return [min(max(time // cost, least), most) for cost in costs]

    low, high = 0, max(costs) * most
    while low < high:
        middle = (low + high) // 2
        if sum(within(middle)) < size:
            low = middle + 1
        else:
            high = middle
    found = within(low)
    for rank in sorted(range(len(costs)), key=lambda rank: -found[rank] * costs[rank]):
        # What the last step of time let in too much; none of them takes longer for it.
        surplus = sum(found) - size
        if surplus and found[rank] > least:
            found[rank] -= 1
    return tuple(found)
