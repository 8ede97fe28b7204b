# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A world that stands still: what its processes say of themselves, and what is told of it."""

from __future__ import annotations

import dataclasses

START, WAITING, TRAINING, EVALUATION, CHECKPOINT, ENDED = (
    "start",
    "waiting",
    "training",
    "evaluation",
    "checkpoint",
    "ended",
)
"""Phases of a training process in its StepReports; ``waiting``: a stream has nothing new."""


@dataclasses.dataclass(frozen=True, slots=True)
class RankStack:
    """Where one training process stood when it was asked."""

    rank: int
    state: str
    """As the kernel names it: ``S (sleeping)``, ``T (stopped)``, ``D (disk sleep)``, …"""
    text: str
    """Every thread's Python stack, innermost call first; empty if the process gave none."""


@dataclasses.dataclass(frozen=True, slots=True)
class StackReport:
    """The stacks of a pod's training processes (launcher → coordinator, when asked)."""

    pod: str
    round: int
    stacks: tuple[RankStack, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class StackGroup:
    """Ranks that stood in the same place."""

    ranks: tuple[int, ...]
    state: str
    place: str
    """The innermost call of the main thread, and the script's own; empty if there is no stack."""
    late: bool
    """Whether the others seem to wait for these."""
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Hang:
    """A time in which no rank made a step."""

    at: float
    """Unix seconds, when it was found."""
    round: int
    step: int
    """Newest step that was reported before it; 0: none."""
    seconds: float
    """Without a step, when it was found."""
    limit: float
    """Seconds that were allowed."""
    restarted: bool
    """Whether the processes were restarted for it."""
    message: str
    stacks: tuple[StackGroup, ...]
    """Those that the others wait for come first; at most 16."""
