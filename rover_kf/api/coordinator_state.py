# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The part of a coordinator's state that members cannot report to its successor.

New values have defaults: sidecars read the copies of older and newer ones.
"""

from __future__ import annotations

import dataclasses

from rover_kf.api.membership import Round
from rover_kf.api.status import FaultyNode

STATE_VERSION = 2
"""Of CoordinatorState; raised only where a field changes its meaning."""


@dataclasses.dataclass(frozen=True, slots=True)
class LastError:
    """An error that a repetition in the same place would prove to be permanent."""

    signature: str
    step: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class FailureStreak:
    """Failures that followed each other, and no new step nor a while of training between them."""

    round: int = 0
    """That the last one ended; 0: none yet."""
    length: int = 0
    best_step: int = -1
    """Newest step that any round had finished when it failed."""


@dataclasses.dataclass(frozen=True, slots=True)
class RendezvousState:
    """Of the state machine: rounds, budget, failures."""

    number: int
    """Of the newest round: no later one may have it again."""
    expected: int
    """Pods that the job has by now."""
    scaled: bool = False
    """Whether a controller has said so."""
    round: Round | None = None
    """The round that runs; None if none does."""
    spent_rounds: tuple[int, ...] = ()
    """Rounds whose failures have spent the budget."""
    spent_kinds: tuple[str, ...] = ()
    """Of each of those rounds what had ended it; where there are fewer the rest is not known."""
    streak: FailureStreak = dataclasses.field(default_factory=FailureStreak)
    failures: int = 0
    any_step_reported: bool = False
    """Whether the script has ever reported a step."""
    error: LastError | None = None
    closed: bool = False
    exit_code: int = 0
    verdict: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class TelemetryState:
    """Of the job's steps and seconds."""

    started_at: float
    """Unix seconds from which the account of seconds runs."""
    settled_at: float
    """Until when it is settled what they were spent on."""
    spent: dict[str, float]
    """Seconds by bucket."""
    bucket: str = "recovery"
    """Where those since then go."""
    round: int = 0
    """That runs; 0: none."""
    redo_until: int = 0
    """Steps up to this one had been made before, and were lost."""
    step: int = 0
    best: int = 0
    """Newest step that was ever reported: what is done again is no progress."""
    total_steps: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class CoordinatorState:
    """All of it."""

    generation: int
    """Of the coordinator: a later one's is greater."""
    revision: int
    """Counts what a generation has written."""
    rendezvous: RendezvousState
    telemetry: TelemetryState | None = None
    faulty_nodes: tuple[FaultyNode, ...] = ()
    version: int = STATE_VERSION
