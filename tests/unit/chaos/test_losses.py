# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The loss of a step is that of the whole batch, as it was made last; windows compare shares."""

from __future__ import annotations

import pytest
from chaos import journal, shrinking
from chaos.journal import Line
from chaos.shrinking import WINDOW


def _stepped(at: float, rank: int, world: int, step: int, *of: float) -> Line:
    return Line(at, rank, world, "stepped", step, "digest", "-", "process", of[0], int(of[1]))


def test_a_step_that_is_made_again_counts_as_it_was_made_last():
    """By samples over the ranks of one world; a step that not all of a world ended is none."""
    lines = [
        _stepped(1, 0, 2, 1, 3.0, 3),
        _stepped(2, 1, 2, 1, 1.0, 1),
        _stepped(3, 0, 2, 2, 9.0, 2),  # the other rank was lost
        _stepped(4, 0, 1, 2, 2.0, 4),
        _stepped(5, 0, 3, 3, 7.0, 1),  # two were lost, and one never came back
        _stepped(6, 1, 3, 3, 7.0, 1),
    ]
    assert journal.losses(lines) == {1: 2.5, 2: 2.0}
    again = [_stepped(7, rank, 2, 2, 4.0, 2) for rank in (0, 1)]
    assert journal.losses([*lines, *again]) == {1: 2.5, 2: 4.0}


def test_windows_tell_how_far_two_trainings_are_apart():
    """As a share of the undisturbed one, whatever its size."""
    undisturbed = {step: 1e-4 if step > WINDOW else 2.0 for step in range(1, 2 * WINDOW + 1)}
    losses = {step: loss * (1.06 if step > WINDOW else 0.99) for step, loss in undisturbed.items()}
    near, far = shrinking.windows(losses, undisturbed)
    assert (near.end, far.end) == (WINDOW, 2 * WINDOW)
    assert near.apart == pytest.approx(0.01)
    assert far.apart == pytest.approx(0.06)
    assert near.apart < shrinking.TOLERANCE < far.apart
