# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The raise of a CPU limit that throttles pods.

Pods of a replica type share a template, so one throttled pod raises the limit of all. A raise costs
no step. Since the need of a throttled process is unknown, the limit is doubled, or multiplied by
four where it throttles mostly. A raise without effect on throughput is the last. A pod whose loader
lacks cores counts sooner.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from rover_kf.api.faults.limit_raises import CpuLimitRaises, CpuUse

THROTTLED = 0.25
"""Share of the time from which on a pod counts as short: each such period makes a step wait."""
STARVING = 0.10
"""The same where its steps wait for data."""
STARVED = 0.1
"""Of a step, spent waiting for data, from which on that is so."""
MOSTLY = 0.75
"""Share from which on twice as much would likely not do either."""
LEAST_GAIN = 0.05
"""Of the job's steps a second, that a raise has to bring for another one to follow."""
NEARLY = 0.99
"""The kernel keeps a limit in whole microseconds of a period."""
ROUND = 10
"""Limits are multiples of so many thousandths of a core."""


@dataclasses.dataclass(frozen=True, slots=True)
class CpuRaiseLimits:
    """What may be had at most, in thousandths of a core of one container; None: no bound."""

    policy: int | None = None
    """By ``cpu.max``."""
    node: int | None = None
    """What the largest node has for it."""

    @property
    def maximum(self) -> float:
        """The lower one."""
        return min(
            (one for one in (self.policy, self.node) if one is not None), default=float("inf")
        )


@dataclasses.dataclass(frozen=True, slots=True)
class CpuRaiseDecision:
    """What follows from what was seen."""

    state: CpuLimitRaises
    limit: int | None = None
    """The new limit in thousandths of a core; None leaves it as it is."""
    denial_reason: str = ""
    """Why it is not raised, though pods are short."""
    throttled_pods: Mapping[str, CpuUse] = dataclasses.field(default_factory=dict)
    """By pod, those that are."""


@dataclasses.dataclass(frozen=True, slots=True)
class TrainingRate:
    """How the job has trained since the last raise."""

    rate: float
    """Steps a second."""
    nodes: int = 0
    wait_fraction: float = 0.0
    """Share of a step that is spent waiting for data."""


def decide_raise(
    uses: Mapping[str, CpuUse],
    state: CpuLimitRaises,
    limit: int,
    bounds: CpuRaiseLimits,
    *,
    training_rate: TrainingRate,
    now: float,
) -> CpuRaiseDecision:
    """Decide whether and how far to raise the limit of a replica type.

    ``uses`` are over one window; one at an earlier limit does not count. ``limit`` is in
    thousandths of a core, ``now`` in Unix seconds.
    """
    rate, waits = training_rate.rate, training_rate.wait_fraction > STARVED
    least = STARVING if waits else THROTTLED
    short = {
        pod: use
        for pod, use in uses.items()
        if use.throttled >= least and use.limit * 1000 >= NEARLY * limit
    }
    if not short:
        return CpuRaiseDecision(state)
    if state.raises and state.nodes == training_rate.nodes and rate < state.rate * (1 + LEAST_GAIN):
        why = (
            f"the last raise brought too little, {state.rate:.3g} -> {rate:.3g} steps/s: it is not "
            "what the job waits for"
        )
        return CpuRaiseDecision(state, denial_reason=why, throttled_pods=short)
    if bounds.policy is not None and limit >= bounds.policy:
        return CpuRaiseDecision(
            state, denial_reason="cpu.max is reached: raise it", throttled_pods=short
        )
    if limit >= bounds.maximum:
        why = "no node has more cores for a pod of this job: use more replicas"
        return CpuRaiseDecision(state, denial_reason=why, throttled_pods=short)
    worst = max(use.throttled for use in short.values())
    times = 4 if worst >= MOSTLY else 2
    wanted = int(min(-(-times * limit // ROUND) * ROUND, bounds.maximum))
    raised = dataclasses.replace(
        state, raises=state.raises + 1, raised_at=now, rate=rate, nodes=training_rate.nodes
    )
    return CpuRaiseDecision(raised, limit=wanted, throttled_pods=short)
