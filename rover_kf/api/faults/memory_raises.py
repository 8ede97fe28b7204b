# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A container that needed more memory than it may use: what is seen of it, and what was done."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class OomKill:
    """The kernel killed a process of a pod because the memory limit was reached."""

    pod: str
    killed_at: float
    """Unix seconds of the pod's node."""
    limit: int = 0
    """Bytes that the container could use when it happened; 0: not known."""


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryLimitRaises:
    """What was done so far about kills of one replica type's pods."""

    replica_type: str
    """Lower case, as in the pod's label."""
    raises: int = 0
    raised_at: float = 0.0
    """When the limit was raised last; Unix seconds of who raised it."""
    reason: str = ""
    """What it was raised for then."""
    seen_until: float = 0.0
    """The newest kill of unknown limit that was dealt with; Unix seconds of its node."""


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryTrend:
    """How what the worst pod takes has changed since its world began."""

    memory: float
    """Bytes now."""
    per_second: float
    """Bytes a second, over the whole time or its newer half, whichever is less."""
    rising: float
    """Share of pairs of looks of which the later one saw more."""
    seconds: float
    """That it was seen over."""
