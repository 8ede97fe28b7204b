# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job gives replicas to others that lack room; pure. What its share is says ``competition``.

It is no try: there is nothing to verify and nothing to go back for. When there is room again the
job grows by the rule of ``decide``, since its own windows tell what it had.
"""

from __future__ import annotations

from rover_kf.api.decisions import ScaleDecision
from rover_kf.scaling.case import Case
from rover_kf.scaling.competition import Share
from rover_kf.scaling.decide import go
from rover_kf.scaling.policy import WatchPolicy
from rover_kf.scaling.state import Observation, ScalingState


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
