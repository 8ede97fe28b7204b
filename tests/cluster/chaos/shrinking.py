# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What is broken of a job of three that may train with two; pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from chaos import faults
from chaos.faults import Fault
from chaos.scene import SECOND

THIRD = "worker-2"
LEASE_SECONDS = 6
"""After which a silent member is lost (elastic.limits)."""
CUT_OFF_SECONDS = 2.5 * LEASE_SECONDS
"""Longer than a lease, and shorter than the grace of nodes here, so that its pods stay."""
WINDOW = 100
"""Steps whose losses are taken together."""
TOLERANCE = 0.05
"""Share that the mean loss of so many steps may differ by from the one of an undisturbed training
with three ranks all the time: batches are the same, BatchNorm sees larger parts of them while two
train. 0.01 was seen."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shrinking:
    """A fault that takes one of three away for as long as it lasts."""

    name: str
    role: str
    """Whose pod is named by an Event."""
    fault: Fault
    lasts: float = 0.0
    """Seconds at least; 0: until the others train."""


SCENARIOS = (
    Shrinking("cut off for longer than a lease", THIRD, faults.partition(THIRD),
        lasts=CUT_OFF_SECONDS),
    Shrinking("deleted, and no node takes it", THIRD,
        faults.both(faults.no_node, faults.delete_pod(THIRD))),
    Shrinking("deleted at once, no node takes it, and a process of the others killed", SECOND,
        faults.both(faults.no_node,
            faults.both(faults.delete_pod_at_once(SECOND), faults.kill_trainer(THIRD)))),
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """Losses of some steps."""

    end: int
    """The last of them."""
    loss: float
    undisturbed: float

    @property
    def apart(self) -> float:
        """How far the two are from each other, as a share."""
        return abs(self.loss / self.undisturbed - 1)


def windows(losses: Mapping[int, float], undisturbed: Mapping[int, float]) -> list[Window]:
    """Means of WINDOW steps each.

    Args:
        losses: by step; all from the first to the last.
        undisturbed: the same of a training to which nothing happened.
    """
    last = max(undisturbed)
    found = []
    for end in range(WINDOW, last + 1, WINDOW):
        steps = range(end - WINDOW + 1, end + 1)
        means = (sum(of[step] for step in steps) / WINDOW for of in (losses, undisturbed))
        found.append(Window(end, *means))
    return found
