# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Containers that a limit of CPU or memory holds back: what is seen of them, and what was done."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class CpuCount:
    """What the kernel has counted for a container, at one moment."""

    measured_at: float
    """Monotonic seconds of the pod."""
    used: float
    """Seconds of cores, since the container began."""
    throttled: int
    """Periods in which it had used up its share before their end."""
    period: float
    """Seconds of one."""
    limit: float
    """Cores that it may use now."""


@dataclasses.dataclass(frozen=True, slots=True)
class CpuUse:
    """What follows from two counts at one limit."""

    cores: float
    """Kept busy, on average."""
    limit: float
    """Cores that it could use."""
    throttled: float
    """Share of the time in whose periods it had used up its cores."""
    seconds: float
    """Between the counts."""


@dataclasses.dataclass(frozen=True, slots=True)
class PodCpu:
    """The same of a pod that trains with others."""

    pod: str
    use: CpuUse


@dataclasses.dataclass(frozen=True, slots=True)
class LimitRaises:
    """The raises of a limit of one replica type's pods."""

    replica_type: str
    """Lower case, as in the pod's label."""
    raises: int = 0
    raised_at: float = 0.0
    """When the limit was raised last; Unix seconds of who raised it."""
    reason: str = ""
    """What it was raised for then, in a sentence."""


@dataclasses.dataclass(frozen=True, slots=True)
class CpuLimitRaises(LimitRaises):
    """The raises of the CPU limit of pods that are throttled."""

    rate: float = 0.0
    """Steps a second that the job made before the last one."""
    nodes: int = 0
    """Pods that trained then: at another size, steps a second tell nothing of it."""


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryLimitRaises(LimitRaises):
    """The raises of the memory limit of pods whose processes are killed."""

    seen_until: float = 0.0
    """The newest kill of unknown limit that was dealt with; Unix seconds of its node."""


@dataclasses.dataclass(frozen=True, slots=True)
class OomKill:
    """The kernel killed a process of a pod because the memory limit was reached."""

    pod: str
    killed_at: float
    """Unix seconds of the pod's node."""
    limit: int = 0
    """Bytes that the container could use when it happened; 0: not known."""


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
