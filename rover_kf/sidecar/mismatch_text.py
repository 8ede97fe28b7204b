# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the Event says of ranks that should hold the same and do not; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rover_kf.checkpoint.divergence import Division

_MOST_NAMED = 3
"""Ranks, and tensors; an Event's message is bounded."""
_PAIR = 2


def of(
    step: int,
    division: Division,
    *,
    pods: Mapping[int, str],
    tensors: Sequence[str],
    count: int,
    equal_step: int | None,
) -> str:
    """The message.

    Args:
        step: that was compared.
        division: of its ranks.
        pods: by rank.
        tensors: names of those in which they differ.
        count: how many tensors were compared.
        equal_step: the newest step that was found equal on all ranks.
    """
    suspects = [f"{rank} ({pods[rank]})" for rank in division.suspects]
    where = f"{len(tensors)} of {count} tensors that all ranks should hold alike: {_some(tensors)}"
    if division.is_decided:
        who = "rank {} differs" if len(suspects) == 1 else "ranks {} differ"
        others = len(division.groups[0])
        found = f"{who.format(_some(suspects))} from the other {others} in {where}"
    else:
        why = "of two" if len(suspects) == _PAIR else "where no group is the largest"
        found = f"ranks {_some(suspects)} differ in {where}; {why} nobody can tell which is wrong"
    since = (
        f"All were equal at step {equal_step}; later checkpoints may be wrong"
        if equal_step is not None
        else "No earlier step was found equal, so they may have begun unequal"
    )
    return (
        f"step {step}: {found}. {since}. Look at the memory and GPU of the pod's node, and for "
        "code that changes these tensors on some ranks only"
    )


def _some(items: Sequence[str]) -> str:
    more = len(items) - _MOST_NAMED
    shown = ", ".join(items[:_MOST_NAMED])
    return f"{shown} and {more} more" if more > 0 else shown
