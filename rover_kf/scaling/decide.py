# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whether another number of replicas pays, now; pure, the same in production and simulation.

Each tick the reconcilers call ``decide``. With K nodes, throughput thr and work left rem, a
size costs

    J(K) = rem / thr(K) * (K + value_of_time)           replica-seconds and a price for waiting

and the job moves to K' only if J(K) - E[J(K')] - R (K' + value_of_time) > hysteresis * J(K), R
being the measured restart cost, and if the time left is more than twice the break-even time. At
most a factor of two at a time.

The expectation is over what the model does not know of thr(K'), as far as its spread says. Of a few
equally likely values each is worth the least of two: staying there to the end, or coming back. So a
wide spread makes a try worth more where little is lost by it, and a dear restart makes it worth
less. The change is *verified*: if the windows at K' do not reach what K' needed, it is taken back
and K' is banned for a while. Every decision, "stay" too, says why with its numbers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from rover_kf.api.decisions import ScaleDecision
from rover_kf.scaling.decision_input import ROLL_BACK, SCALE, DecisionInput
from rover_kf.scaling.policy import AutoscalingPolicy
from rover_kf.scaling.ps_decision_input import PsDecisionInput
from rover_kf.scaling.scaling_state import JobObservation, Move, ScalingState
from rover_kf.scaling.throughput import ThroughputModel

NOTHING_NEW = "no new window since the last look"
"""Reason of a decision that repeats the last one; callers need not keep it."""

TOLERANCE = 0.02
"""Noise allowed below the throughput that a changed world needed."""


VOTES = 2
"""Windows in a row that a change of direction needs."""
CLEAR = 0.85
"""Of the throughput that was needed: less in one window is no noise."""


def decide(
    observation: JobObservation, policy: AutoscalingPolicy, state: ScalingState, *, now: float
) -> tuple[ScaleDecision, ScalingState]:
    """Decide on one look at a job.

    Args:
        observation: the job now.
        policy: what its owner allows; ``mode`` is the caller's business.
        state: what the last call returned (or a fresh one).
        now: Unix seconds.

    Returns:
        The decision and the state to keep. If the action is not ``stay``, the state holds the move;
        the caller makes it and then keeps ``state.with_change(now)``.
    """
    case = DecisionInput.from_observation(observation, policy, state, now)
    move = state.move
    if move is not None and not move.changed_at:
        return case.stay(f"the change to {move.target} replicas is being made"), state
    if move is not None and observation.replicas != move.target:
        state = dataclasses.replace(state, move=None)
        return case.stay(f"replicas were set to {observation.replicas} by someone else"), state
    if move is not None:
        return _verify(case, move)
    if not observation.steady:
        return case.stay("the job is not training steadily at its full size"), state
    if not policy.allowed():
        return case.stay(f"no size is allowed: bounds {policy.min}..{policy.max}"), state
    if observation.replicas not in range(policy.min, policy.max + 1):
        return _into_bounds(case)
    if len(case.windows) < policy.settle_windows:
        have = f"{len(case.windows)} of {policy.settle_windows} windows"
        return case.stay(f"{have} measured at {observation.replicas} replicas"), state
    # Half a window of slack: the same window may come with a slightly other time (clock skew).
    if case.windows[-1].ended_at <= state.seen_until + policy.window_seconds / 2:
        return case.stay(NOTHING_NEW), state
    state = dataclasses.replace(state, seen_until=case.windows[-1].ended_at)
    return _optimise(dataclasses.replace(case, state=state))


def _verify(case: DecisionInput, move: Move) -> tuple[ScaleDecision, ScalingState]:
    """Judge a change that was made: keep it, take it back, or wait for windows."""
    policy, now = case.policy, case.now
    if len(case.windows) < policy.settle_windows and not clearly_disappoints(case, move):
        waited = now - move.changed_at
        if case.windows or case.observation.steady or waited <= policy.join_seconds:
            have = f"{len(case.windows)} of {policy.settle_windows} windows"
            return case.stay(f"verifying {move.target} replicas: {have}"), case.state
        why = f"{move.target} replicas did not train together within {waited:.0f} s"
        return _roll_back(case, move, why)
    numbers = (
        f"{case.rate:.1f} samples/s at {move.target} replicas, {move.baseline:.1f} before, "
        f"{move.predicted:.1f} predicted, {move.needed:.1f} needed"
    )
    done = dataclasses.replace(
        case.state, move=None, seen_until=case.windows[-1].ended_at, votes=0, vote_direction=0
    )
    if case.rate >= move.needed * (1 - TOLERANCE):
        return case.stay(f"verified: {numbers}"), dataclasses.replace(done, verified=True)
    home = FallbackSize(*move.fallback)
    saved = case.cost(move.target, case.rate) - case.cost(home.size, home.rate)
    if saved <= case.change_cost(home.size) or case.nearly_done:
        done = done.with_ban(move.target, policy.ban_seconds, now)
        return case.stay(f"disappointing, but too late to go back: {numbers}"), done
    return _roll_back(case, move, numbers)


def clearly_disappoints(case: DecisionInput | PsDecisionInput, move: Move) -> bool:
    """Whether a single window is so far below what was needed that noise cannot be the cause."""
    return bool(case.windows) and case.rate < move.needed * CLEAR


def _roll_back(case: DecisionInput, move: Move, why: str) -> tuple[ScaleDecision, ScalingState]:
    """Ban the size and leave it: for home, or for a size on the way that promises more."""
    state = case.state.with_ban(move.target, case.policy.ban_seconds, case.now)
    minutes = (state.bans[-1].until - case.now) / 60
    why = f"{why}; not tried again for {minutes:.0f} min"
    case = dataclasses.replace(case, state=dataclasses.replace(state, votes=0, vote_direction=0))
    home = FallbackSize(*move.fallback)
    offer = _better_candidate(case, home)
    if offer is not None:
        reason = f"{offer.size} replicas promise more than going back to {home.size}: {why}"
        return start_move(case, offer.size, offer.rate, fallback=home, reason=reason)
    reason = f"going back to {home.size} replicas: {why}"
    decision = case.decision(ROLL_BACK, home.size, reason, home.rate)
    back = Move(
        origin=move.target,
        target=home.size,
        decided_at=case.now,
        rolls_back=True,
        baseline=case.rate,
        predicted=home.rate,
        reason=reason,
    )
    return decision, dataclasses.replace(case.state, move=back)


def _better_candidate(case: DecisionInput, fallback: FallbackSize) -> Candidate | None:
    """A size on the way that is expected to be cheaper than home: the restart is due anyway."""
    model = case.observation.model
    if model is None or not case.windows:
        return None
    there = case.cost(fallback.size, fallback.rate) + case.change_cost(fallback.size)
    found = candidates_between(case, model, fallback)
    return found[0] if found and found[0].expected_cost < there else None


def _into_bounds(case: DecisionInput) -> tuple[ScaleDecision, ScalingState]:
    """The owner's bounds go before every reckoning, and before the limit of a factor of two."""
    current, allowed = case.observation.replicas, case.policy.allowed()
    target = allowed[0] if current < allowed[0] else allowed[-1]
    reason = f"{current} replicas are outside of the allowed {allowed[0]}..{allowed[-1]}"
    model = case.observation.model
    rate = case.rate
    if model is not None:
        rate = model.predict(case.world_size(target)).samples_per_second
    return start_move(case, target, rate, fallback=None, reason=reason)


def _optimise(case: DecisionInput) -> tuple[ScaleDecision, ScalingState]:
    """Find the cheapest size within reach and see whether going there pays."""
    seen, policy = case.observation, case.policy
    blocked = _blocked(case)
    model = None if blocked else seen.model
    if model is None:
        return case.stay(blocked or "no throughput measured yet"), case.state
    present = case.cost(seen.replicas, case.rate)
    found = candidates(case, model)
    if not found:
        return _reset(case, f"no other size than {seen.replicas} may be tried now")
    offer = found[0]
    size, rate = offer.size, offer.rate
    saving = (present - offer.expected_cost) / present
    numbers = (
        f"{seen.replicas} -> {size} replicas: {case.rate:.1f} -> {rate:.1f} samples/s predicted, "
        f"{case.seconds_left:.0f} s of work left, {case.restart_seconds:.1f} s a change, "
        f"saves {saving:.0%} of the cost{case.data_wait_note if size > seen.replicas else ''}"
    )
    if saving <= policy.hysteresis:
        return _reset(case, f"{numbers}; less than {policy.hysteresis:.0%} is not worth it")
    earned = case.seconds_left * (rate - case.rate)
    if size > seen.replicas and earned <= 2 * case.restart_seconds * rate:
        return _reset(case, f"{numbers}; too little work left to earn the change back")
    return _confirm(case, size, rate, numbers)


def _blocked(case: DecisionInput) -> str:
    """Why no change may be made now whatever it would gain; empty if it may."""
    if case.nearly_done:
        return f"step {case.observation.step} of {case.observation.total_steps}: nearly done"
    wait = max(case.policy.cooldown_seconds, 5 * case.restart_seconds)
    since = case.now - case.state.changed_at
    if case.state.changed_at and since < wait and not case.state.verified:
        return f"{since:.0f} s since the last change, {wait:.0f} s are kept between two"
    return ""


def _confirm(
    case: DecisionInput, size: int, rate: float, numbers: str
) -> tuple[ScaleDecision, ScalingState]:
    """A reversal of direction needs two windows in a row that want it."""
    direction = 1 if size > case.observation.replicas else -1
    votes = min(case.state.votes + 1, VOTES) if case.state.vote_direction == direction else 1
    state = dataclasses.replace(case.state, votes=votes, vote_direction=direction)
    if case.state.direction == -direction and votes < VOTES:
        return case.stay(f"{numbers}; a change of direction waits for a second window"), state
    case = dataclasses.replace(case, state=state)
    return start_move(
        case,
        size,
        rate,
        fallback=FallbackSize(case.observation.replicas, case.rate),
        reason=numbers,
    )


def _reset(case: DecisionInput, reason: str) -> tuple[ScaleDecision, ScalingState]:
    return case.stay(reason), dataclasses.replace(case.state, votes=0, vote_direction=0)


def start_move(
    case: DecisionInput, target: int, rate: float, *, fallback: FallbackSize | None, reason: str
) -> tuple[ScaleDecision, ScalingState]:
    """Go to the target; it needs to be no dearer than home, if there is one.

    Args:
        case: as it is.
        target: Worker replicas.
        rate: samples per second that are predicted there.
        fallback: what is gone back to if the target disappoints; None: it is gone to for other
            reasons.
        reason: one sentence.
    """
    needed = 0.0
    if fallback is not None:
        extra = case.observation.masters + case.policy.value_of_time
        needed = fallback.rate * (target + extra) / (fallback.size + extra)
    elsewhere = fallback is not None and fallback.size != case.observation.replicas
    move = Move(
        origin=case.observation.replicas,
        target=target,
        decided_at=case.now,
        baseline=case.rate,
        predicted=rate,
        needed=needed,
        reason=reason,
        fallback_size=fallback.size if fallback is not None and elsewhere else 0,
        fallback_rate=fallback.rate if fallback is not None and elsewhere else 0.0,
    )
    decision = case.decision(SCALE, target, reason, rate)
    return decision, dataclasses.replace(case.state, move=move)


QUANTILES = (-1.28, -0.52, 0.0, 0.52, 1.28)
"""Of the normal distribution: middles of five equally likely parts."""


@dataclasses.dataclass(frozen=True, slots=True)
class FallbackSize:
    """The size that is gone back to where a try disappoints."""

    size: int
    rate: float


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """A size that might be gone to."""

    size: int
    rate: float
    """Samples per second, the model's word."""
    expected_cost: float
    """Expected cost J of going there, with the way there and perhaps back."""


def candidates(case: DecisionInput, model: ThroughputModel) -> list[Candidate]:
    """Sizes within a factor of two that are allowed and not banned, cheapest first."""
    present = case.observation.replicas
    near = (k for k in case.policy.allowed() if present <= 2 * k and k <= 2 * present)
    return _by_expected_cost(
        case, model, [k for k in near if k != present], FallbackSize(present, case.rate)
    )


def candidates_between(
    case: DecisionInput, model: ThroughputModel, fallback: FallbackSize
) -> list[Candidate]:
    """Sizes between the present one, which disappointed, and the one to go back to."""
    low, high = sorted((fallback.size, case.observation.replicas))
    return _by_expected_cost(
        case, model, [k for k in case.policy.allowed() if low < k < high], fallback
    )


def _by_expected_cost(
    case: DecisionInput, model: ThroughputModel, sizes: Iterable[int], fallback: FallbackSize
) -> list[Candidate]:
    banned = case.state.banned(case.now)
    found = []
    for size in sizes:
        if size not in banned:
            rate, spread = model.rate(case.world_size(size)), model.spread(case.world_size(size))
            found.append(
                Candidate(size, rate, _expected_cost(case, size, (rate, spread), fallback))
            )
    return sorted(found, key=lambda offer: offer.expected_cost)


def _expected_cost(
    case: DecisionInput, size: int, estimate: tuple[float, float], fallback: FallbackSize
) -> float:
    """Replica-seconds and the price of waiting for the rest of the work."""
    rate, spread = estimate
    back = case.cost(fallback.size, fallback.rate) + case.change_cost(fallback.size)
    total = 0.0
    for quantile in QUANTILES:
        there = rate * math.exp(spread * quantile)
        total += min(case.cost(size, there), back + _trial_cost(case, size, there, fallback))
    return total / len(QUANTILES) + case.change_cost(size)


def _trial_cost(case: DecisionInput, size: int, rate: float, fallback: FallbackSize) -> float:
    """What is lost while windows show that the size is worse than home."""
    seconds = min(case.policy.settle_windows * case.policy.window_seconds, case.seconds_left)
    extra = case.observation.masters + case.policy.value_of_time
    work_at_home = (fallback.size + extra) / fallback.rate
    return max(0.0, seconds * (size + extra) - seconds * rate * work_at_home)
