# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How long a job waits before it starts once more after failures that follow each other; pure.

What broke one round mostly does not break the next: the first restart of a row is made at once.
What breaks round after round (a service that is away, a node that starves) is given time, each time
twice as long. Else a budget of ten would be spent within seconds of an outage of minutes.
"""

from __future__ import annotations

from rover_kf.api.coordinator_state import FailureStreak

FIRST_SECONDS = 1.0
"""Before the second restart of a row; doubled with each further one."""
STABLE_SECONDS = 60.0
"""A round that lasted so long is no part of a row."""


def extend_streak(
    streak: FailureStreak, number: int, *, step: int | None, seconds: float
) -> FailureStreak:
    """The row with one failure more.

    Args:
        streak: until now.
        number: of the round that it ended; told again, or late, it changes nothing.
        step: the newest that the round had finished; None: none.
        seconds: that the round had lasted.
    """
    if number <= streak.round:
        return streak
    reached = -1 if step is None else step
    steady = reached > streak.best_step or seconds >= STABLE_SECONDS
    return FailureStreak(number, 1 if steady else streak.length + 1, max(streak.best_step, reached))


def backoff_seconds(streak: FailureStreak, max_seconds: float) -> float:
    """Seconds before the next round.

    Args:
        streak: with the failure that has just ended a round.
        max_seconds: by policy; 0: none is ever made.
    """
    doublings = min(streak.length - 2, 60)
    return min(FIRST_SECONDS * 2.0**doublings, max_seconds) if doublings >= 0 else 0.0


def newest_streak(current: FailureStreak, other: FailureStreak) -> FailureStreak:
    """Of what two coordinators knew, what was known last; equally new: the first."""
    return other if other.round > current.round else current
