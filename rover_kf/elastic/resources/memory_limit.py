# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The raise of a memory limit after a kill for memory, or in time before one.

Pods of a replica type do the same work, so one kill raises the limit of all. A kill counts against
the limit at which it happened, which is raised once for all of its kills.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rover_kf.api.faults.limit_raises import MemoryLimitRaises, MemoryTrend, OomKill

MAX_RAISES = 4
"""After so many something grows without end, and more memory only puts the end off."""
MARGIN = 100_000_000
"""Bytes beside a fifth of the limit: for a small limit half of it is too little to matter."""
SETTLE_SECONDS = 20.0
"""A kill of unknown limit that is seen so soon after a raise was still one at the old limit."""
PAGES = 1 << 16
"""The kernel rounds a limit down to whole pages, which are 64 KiB at most."""
NEARLY = 0.95
"""Of a limit: beyond it a burst is enough."""
RISING = 0.8
"""Share of pairs of looks that have to rise: what falls again at each epoch's end does not."""
SOON_SECONDS = 600.0
"""Before the limit is reached; what is farther off is looked at again."""
LEAST_GROWTH = 0.05
"""Of a limit, in that time; less is raised for only where the limit itself would be reached."""
BEYOND = 1.1
"""Of what is predicted for the end."""
MIB = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryRaiseLimits:
    """What may be had at most, in bytes of one trainer container."""

    policy: int
    """By ``memory.max``."""
    node: int | None = None
    """What the largest node has for it; None: not known."""


@dataclasses.dataclass(frozen=True, slots=True)
class RemainingWork:
    """What is left to do, and what an interruption costs."""

    seconds_left: float
    restart_seconds: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryRaiseDecision:
    """What follows from the kills that are known."""

    state: MemoryLimitRaises
    limit: int | None = None
    """The new limit in bytes; None leaves it as it is."""
    denial_reason: str = ""
    """Why it is not raised, though a kill asks for it."""
    predicted_reason: str = ""
    """Why it is raised before anything was killed; empty after a kill."""


def after_oom(
    kills: Sequence[OomKill],
    state: MemoryLimitRaises,
    limit: int,
    bounds: MemoryRaiseLimits,
    now: float,
) -> MemoryRaiseDecision:
    """Decide whether and how far to raise the limit of a replica type after kills.

    ``kills`` are all known ones, handled ones among them. ``limit`` (bytes) is the one that the
    type's pods shall have now; ``now`` is in Unix seconds.
    """
    unknown = [
        kill.killed_at for kill in kills if not kill.limit and kill.killed_at > state.seen_until
    ]
    settled = now - state.raised_at >= SETTLE_SECONDS
    counts = [kill for kill in kills if kill.limit and kill.limit + PAGES > limit]
    if unknown:
        state = dataclasses.replace(state, seen_until=max(unknown))
    if not counts and not (unknown and settled):
        return MemoryRaiseDecision(state)
    limit = max([limit, *(kill.limit for kill in counts)])
    if refusal := _denial_reason(state, limit, bounds):
        return MemoryRaiseDecision(state, denial_reason=refusal)
    most = min(bounds.policy, bounds.node or bounds.policy)
    wanted = min(next_limit(limit, state.raises), most)
    raised = dataclasses.replace(state, raises=state.raises + 1, raised_at=now)
    return MemoryRaiseDecision(raised, limit=wanted)


def before_oom(
    trend: MemoryTrend,
    state: MemoryLimitRaises,
    limit: int,
    bounds: MemoryRaiseLimits,
    *,
    work: RemainingWork,
    now: float,
) -> MemoryRaiseDecision:
    """Raise the limit in time if the work would reach it soon.

    ``trend`` is the worst pod's. ``limit`` (bytes) is the one that the type's pods shall have now.
    """
    room = NEARLY * limit - trend.memory
    if trend.rising < RISING or trend.per_second <= 0 or now - state.raised_at < SETTLE_SECONDS:
        return MemoryRaiseDecision(state)
    seconds = max(room, 0.0) / trend.per_second
    soon = max(SOON_SECONDS, 2 * work.restart_seconds)
    near = min(soon, work.seconds_left)
    growth = trend.per_second * near
    little = growth < LEAST_GROWTH * limit and not trend.memory < limit <= trend.memory + growth
    if seconds >= near or little or _denial_reason(state, limit, bounds):
        return MemoryRaiseDecision(state)
    peak = trend.memory + trend.per_second * work.seconds_left
    most = min(bounds.policy, bounds.node or bounds.policy)
    wanted = min(max(next_limit(limit, state.raises), _round_up(peak * BEYOND)), most)
    why = (
        f"it grows by {trend.per_second / MIB:.2f} MiB/s since {trend.seconds:.0f} s and would "
        f"reach the limit in {seconds:.0f} s"
    )
    raised = dataclasses.replace(state, raises=state.raises + 1, raised_at=now)
    return MemoryRaiseDecision(raised, limit=wanted, predicted_reason=why)


def next_limit(limit: int, raises: int) -> int:
    """The next limit without bounds, in whole MiB: half as much again at first, then twice."""
    wanted = 2 * limit if raises else max(limit * 3 // 2, limit * 6 // 5 + MARGIN)
    return _round_up(wanted)


def _round_up(size: float) -> int:
    return -int(-size // MIB) * MIB


def _denial_reason(state: MemoryLimitRaises, limit: int, bounds: MemoryRaiseLimits) -> str:
    if state.raises >= MAX_RAISES:
        return (
            f"it was raised {MAX_RAISES} times already: look for what grows without end, or set "
            "a limit that is enough"
        )
    if bounds.policy <= limit:
        return "memory.max is reached: raise it, or let the program use less"
    if bounds.node is not None and bounds.node <= limit:
        return "no node has more memory for a pod of this job: let the program use less"
    return ""
