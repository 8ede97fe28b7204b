# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job gives replicas to others that lack room, or asks for no more than it got; pure.

What its share is says ``competition``. Neither is a try: there is nothing to verify and nothing to
go back for. When there is room again the job grows by the rule of ``decide``.
"""

from __future__ import annotations

from rover_kf.api.decisions import ScaleDecision
from rover_kf.scaling.decide import go
from rover_kf.scaling.decision_input import Case
from rover_kf.scaling.fair_sharing import Share
from rover_kf.scaling.policy import WatchPolicy
from rover_kf.scaling.scaling_state import Observation, ScalingState

SETTLES_SECONDS = 120.0
"""How long pods may find no node before a job that trains without them asks for them no more."""


def give_way(
    seen: Observation, policy: WatchPolicy, state: ScalingState, share: Share, *, now: float
) -> tuple[ScaleDecision, ScalingState] | None:
    """The decision to shrink to the share, with the state to keep; None if it has no more.

    Args:
        seen: the job now.
        policy: what its owner allows.
        state: as kept.
        share: what it may have.
        now: Unix seconds.
    """
    fitting = [size for size in policy.allowed() if size <= share.most]
    if state.move is not None or not seen.steady or not fitting or seen.replicas <= fitting[-1]:
        return None
    case = Case.of(seen, policy, state, now)
    rate = 0.0 if seen.model is None else seen.model.rate(case.world(fitting[-1]))
    reason = f"gives {seen.replicas - fitting[-1]} of {seen.replicas} replicas: {share.why}"
    return go(case, fitting[-1], rate, home=None, reason=reason)


def settle(
    seen: Observation, policy: WatchPolicy, state: ScalingState, *, now: float
) -> tuple[ScaleDecision, ScalingState] | None:
    """The decision to ask for those replicas that found a node; None while all may find one.

    Until then the job is not steady, so that nothing else would be decided, and its own pods would
    be the first to take whatever room there is.

    Args:
        seen: the job now.
        policy: what its owner allows.
        state: as kept.
        now: Unix seconds.
    """
    placed = seen.replicas - seen.unplaced
    fitting = [size for size in policy.allowed() if size <= placed]
    waits = not seen.unplaced or seen.unplaced_seconds < SETTLES_SECONDS
    if state.move is not None or waits or not fitting:
        return None
    case = Case.of(seen, policy, state, now)
    reason = (
        f"settles for {fitting[-1]} of {seen.replicas} replicas: no node has had room for "
        f"{seen.unplaced} of its pods for {seen.unplaced_seconds:.0f} s"
    )
    rate = 0.0 if seen.model is None else seen.model.rate(case.world(fitting[-1]))
    return go(case, fitting[-1], rate, home=None, reason=reason)
