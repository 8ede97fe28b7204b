# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What one look comes to once it is known what is around the job; pure.

``decide`` says what a job would do, were there room for everything. Here that meets the room there
is and what others lack: the controller and the simulation of a cluster both end here. Where there
is less room than the decision wants, the same decision is made again with what there is: so it is
either a smaller step that pays by itself, or to stay.

A job gives replicas to others that lack room, or asks for no more than it got. Neither is a try:
there is nothing to verify and nothing to go back for. When there is room again the job grows by the
rule of ``decide``.
"""

from __future__ import annotations

import dataclasses
import math

from rover_kf.api.decisions import ScaleDecision
from rover_kf.scaling import headroom
from rover_kf.scaling.decide import ReplicaDecision, decide
from rover_kf.scaling.decision_input import NOTHING_NEW, STAY, Decided
from rover_kf.scaling.fair_sharing import FairShare, FairShareView
from rover_kf.scaling.policy import AutoscalingPolicy
from rover_kf.scaling.scaling_state import JobObservation, ScalingState


@dataclasses.dataclass(frozen=True, slots=True)
class AdmissionInput:
    """A job and what is around it."""

    observation: JobObservation
    policy: AutoscalingPolicy
    state: ScalingState
    view: FairShareView | None = None
    """None: it was not looked at, since nothing is wanted and nobody lacks room."""
    denial: str = ""
    """Why the API server would not take the change that is wanted, by a dry run."""


@dataclasses.dataclass(frozen=True, slots=True)
class AdmissionResult:
    """What the job does now."""

    decision: ScaleDecision
    state: ScalingState
    """To be kept with the decision; with a move, if it is not to stay."""
    desired: int | None = None
    """Replicas that it would have, were there room; 0: what it asks for; None: as before."""
    bound: str = ""
    """What has no room for these, if it is something that other jobs might give."""
    denial_reason: str = ""
    """What would pay and why it cannot be had; empty where nothing is in the way."""
    limit_reason: str = ""
    """Why it cannot be had, alone."""


def admit(
    inputs: AdmissionInput, decision: ScaleDecision, state: ScalingState, *, now: float
) -> AdmissionResult:
    """Return what follows from what ``decide`` returned for the same look, whatever the room."""
    here, policy = inputs.observation, inputs.policy
    if inputs.view is not None:
        given = yield_replicas(here, policy, inputs.state, inputs.view.share, now=now)
        if given is not None:
            return AdmissionResult(*given, desired=0)
    settled = _accept(here, policy, inputs.state, now)
    if settled is not None:
        return AdmissionResult(*settled, desired=0)
    if decision.action == STAY:
        nothing_new = decision.reason == NOTHING_NEW
        return AdmissionResult(decision, state, desired=None if nothing_new else 0)
    most, why, bound = _max_replicas(inputs)
    if decision.target <= max(most, here.replicas):
        return AdmissionResult(decision, state, desired=0)
    bounded = dataclasses.replace(policy, max=int(max(most, here.replicas)))
    less, state = decide(here, bounded, inputs.state, now=now)
    less = dataclasses.replace(less, bound=why)
    # What other jobs might give, they shall know of.
    wants = 0 if inputs.denial else decision.target
    if less.action != STAY:
        return AdmissionResult(less, state, wants, bound)
    reason = f"{decision.target} replicas would pay, and {why}; {decision.reason}"
    refusal = f"{decision.target} would pay, and {why}"
    return AdmissionResult(
        dataclasses.replace(less, reason=reason), state, wants, bound, refusal, why
    )


def _max_replicas(inputs: AdmissionInput) -> tuple[float, str, str]:
    """How many replicas there is room for now, what that ends at, and that in a word."""
    replicas, view = inputs.observation.replicas, inputs.view
    if inputs.denial:
        return replicas, f"the API server would not take it: {inputs.denial}", ""
    if view is None:
        return math.inf, "", ""
    left, share = headroom.pod_headroom(view.requirements, view.capacity), view.share
    most = replicas + left.count
    if most > share.max_replicas:
        return share.max_replicas, share.reason, ""
    return most, left.reason, left.bound


SETTLES_SECONDS = 120.0
"""How long pods may find no node before a job that trains without them asks for them no more."""


def yield_replicas(
    observation: JobObservation,
    policy: AutoscalingPolicy,
    state: ScalingState,
    share: FairShare,
    *,
    now: float,
) -> Decided | None:
    """Return the decision to shrink to the share, with its state; None if it has no more."""
    fitting = [size for size in policy.allowed() if size <= share.max_replicas]
    replicas = observation.replicas
    if state.move is not None or not observation.steady or not fitting or replicas <= fitting[-1]:
        return None
    reason = f"gives {replicas - fitting[-1]} of {replicas} replicas: {share.reason}"
    case = ReplicaDecision.from_observation(observation, policy, state, now)
    return _shrink(case, fitting[-1], reason)


def _accept(
    observation: JobObservation, policy: AutoscalingPolicy, state: ScalingState, now: float
) -> Decided | None:
    """The decision to ask for those replicas that found a node; None while all may find one.

    Until then the job is not steady, so that nothing else would be decided, and its own pods would
    be the first to take whatever room there is.
    """
    placed = observation.replicas - observation.unschedulable
    fitting = [size for size in policy.allowed() if size <= placed]
    waits = not observation.unschedulable or observation.unschedulable_seconds < SETTLES_SECONDS
    if state.move is not None or waits or not fitting:
        return None
    reason = (
        f"settles for {fitting[-1]} of {observation.replicas} replicas: no node has had room for "
        f"{observation.unschedulable} of its pods for {observation.unschedulable_seconds:.0f} s"
    )
    case = ReplicaDecision.from_observation(observation, policy, state, now)
    return _shrink(case, fitting[-1], reason)


def _shrink(case: ReplicaDecision, size: int, reason: str) -> Decided:
    model = case.observation.model
    rate = 0.0 if model is None else model.rate(case.world_size(size))
    return case.start_move(size, rate, fallback=None, reason=reason)
