# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What one look comes to once it is known what is around the job; pure.

``decide`` says what a job would do, were there room for everything. Here that meets the room there
is and what others lack: the controller and the simulation of a cluster both end here. Where there
is less room than the decision wants, the same decision is made again with what there is: so it is
either a smaller step that pays by itself, or to stay.
"""

from __future__ import annotations

import dataclasses
import math

from rover_kf.api.decisions import ScaleDecision
from rover_kf.scaling import headroom
from rover_kf.scaling.decide import NOTHING_NEW, decide
from rover_kf.scaling.decision_input import STAY
from rover_kf.scaling.fair_sharing import View
from rover_kf.scaling.policy import WatchPolicy
from rover_kf.scaling.replica_yield import give_way, settle
from rover_kf.scaling.scaling_state import Observation, ScalingState


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """A job and what is around it."""

    here: Observation
    policy: WatchPolicy
    memory: ScalingState
    """As kept."""
    view: View | None = None
    """None: it was not looked at, since nothing is wanted and nobody lacks room."""
    refused: str = ""
    """Why the API server would not take the change that is wanted, by a dry run."""


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What the job does now."""

    decision: ScaleDecision
    state: ScalingState
    """To be kept with the decision; with a move, if it is not to stay."""
    wants: int | None = None
    """Replicas that it would have, were there room; 0: what it asks for; None: as before."""
    bound: str = ""
    """What has no room for these, if it is something that other jobs might give."""
    refusal: str = ""
    """What would pay and why it cannot be had; empty where nothing is in the way."""
    ends_at: str = ""
    """Why it cannot be had, alone."""


def judge(look: Look, decision: ScaleDecision, state: ScalingState, *, now: float) -> Verdict:
    """What follows from what ``decide`` said of the same look.

    Args:
        look: the job and what is around it.
        decision: whatever there is room for.
        state: to be kept with that.
        now: Unix seconds.
    """
    here, policy = look.here, look.policy
    if look.view is not None:
        given = give_way(here, policy, look.memory, look.view.share, now=now)
        if given is not None:
            return Verdict(*given, wants=0)
    settled = settle(here, policy, look.memory, now=now)
    if settled is not None:
        return Verdict(*settled, wants=0)
    if decision.action == STAY:
        return Verdict(decision, state, wants=None if decision.reason == NOTHING_NEW else 0)
    most, why, bound = _most(look)
    if decision.target <= max(most, here.replicas):
        return Verdict(decision, state, wants=0)
    bounded = dataclasses.replace(policy, max=int(max(most, here.replicas)))
    less, state = decide(here, bounded, look.memory, now=now)
    less = dataclasses.replace(less, bound=why)
    # What other jobs might give, they shall know of.
    wants = 0 if look.refused else decision.target
    if less.action != STAY:
        return Verdict(less, state, wants, bound)
    reason = f"{decision.target} replicas would pay, and {why}; {decision.reason}"
    refusal = f"{decision.target} would pay, and {why}"
    return Verdict(dataclasses.replace(less, reason=reason), state, wants, bound, refusal, why)


def _most(look: Look) -> tuple[float, str, str]:
    """How many replicas there is room for now, what that ends at, and that in a word."""
    replicas, view = look.here.replicas, look.view
    if look.refused:
        return replicas, f"the API server would not take it: {look.refused}", ""
    if view is None:
        return math.inf, "", ""
    left, share = headroom.more_pods(view.need, view.around), view.share
    most = replicas + left.count
    return (most, left.why, left.bound) if most <= share.most else (share.most, share.why, "")
