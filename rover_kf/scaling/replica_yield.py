# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job gives replicas to others that lack room, or asks for no more than it got; pure.

What its share is says ``competition``. Neither is a try: there is nothing to verify and nothing to
go back for. When there is room again the job grows by the rule of ``decide``.
"""

from __future__ import annotations

from rover_kf.api.decisions import ScaleDecision
from rover_kf.scaling.decide import start_move
from rover_kf.scaling.decision_input import DecisionInput
from rover_kf.scaling.fair_sharing import FairShare
from rover_kf.scaling.policy import AutoscalingPolicy
from rover_kf.scaling.scaling_state import JobObservation, ScalingState

SETTLES_SECONDS = 120.0
"""How long pods may find no node before a job that trains without them asks for them no more."""


def yield_replicas(
    observation: JobObservation,
    policy: AutoscalingPolicy,
    state: ScalingState,
    share: FairShare,
    *,
    now: float,
) -> tuple[ScaleDecision, ScalingState] | None:
    """The decision to shrink to the share, with the state to keep; None if it has no more.

    Args:
        observation: the job now.
        policy: what its owner allows.
        state: as kept.
        share: what it may have.
        now: Unix seconds.
    """
    fitting = [size for size in policy.allowed() if size <= share.max_replicas]
    if (
        state.move is not None
        or not observation.steady
        or not fitting
        or observation.replicas <= fitting[-1]
    ):
        return None
    case = DecisionInput.from_observation(observation, policy, state, now)
    rate = (
        0.0 if observation.model is None else observation.model.rate(case.world_size(fitting[-1]))
    )
    reason = (
        f"gives {observation.replicas - fitting[-1]} of {observation.replicas} "
        f"replicas: {share.reason}"
    )
    return start_move(case, fitting[-1], rate, fallback=None, reason=reason)


def accept(
    observation: JobObservation, policy: AutoscalingPolicy, state: ScalingState, *, now: float
) -> tuple[ScaleDecision, ScalingState] | None:
    """The decision to ask for those replicas that found a node; None while all may find one.

    Until then the job is not steady, so that nothing else would be decided, and its own pods would
    be the first to take whatever room there is.

    Args:
        observation: the job now.
        policy: what its owner allows.
        state: as kept.
        now: Unix seconds.
    """
    placed = observation.replicas - observation.unschedulable
    fitting = [size for size in policy.allowed() if size <= placed]
    waits = not observation.unschedulable or observation.unschedulable_seconds < SETTLES_SECONDS
    if state.move is not None or waits or not fitting:
        return None
    case = DecisionInput.from_observation(observation, policy, state, now)
    reason = (
        f"settles for {fitting[-1]} of {observation.replicas} replicas: no node has had room for "
        f"{observation.unschedulable} of its pods for {observation.unschedulable_seconds:.0f} s"
    )
    rate = (
        0.0 if observation.model is None else observation.model.rate(case.world_size(fitting[-1]))
    )
    return start_move(case, fitting[-1], rate, fallback=None, reason=reason)
