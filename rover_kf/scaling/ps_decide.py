# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whether another number of workers or parameter servers pays, now; pure.

As ``decide`` does it for replicas, by the law of parameter servers: the work left costs

    J = rem / rate * (workers + servers by their cores + chief + value_of_time)

and the job goes where J, with the way there and perhaps back, is least, if that saves more than
``hysteresis`` and earns the change twice. What was changed is verified, and taken back where it did
not bring what it needed. A change is live (workers that come and go: nobody waits) or goes through
the suspend cycle (all pods end: TF_CONFIG is fixed when a process begins).

One of the two numbers is changed at a time, by a factor of two at most, as far as the law reaches.
Parameter servers are only added. Where one setup alone was ever seen the law says nothing: then one
worker more is offered where that costs nearly nothing, since workers come and go by themselves.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from rover_kf.api.decisions import ScaleDecision
from rover_kf.api.records import ServerSetup
from rover_kf.scaling.decide import NOTHING_NEW, QUANTILES, TOLERANCE, clearly_disappoints
from rover_kf.scaling.decision_input import ROLL_BACK, SCALE
from rover_kf.scaling.policy import AutoscalingPolicy
from rover_kf.scaling.ps_decision_input import PsDecisionInput, PsObservation
from rover_kf.scaling.scaling_state import Move, ScalingState

CYCLE_JOINS = 2.0
"""Times the patience with a live change: all pods are made anew."""

Decided = tuple[ScaleDecision, ScalingState]


def decide(
    observation: PsObservation, policy: AutoscalingPolicy, state: ScalingState, *, now: float
) -> Decided:
    """Decide on one look at a job with parameter servers.

    Args:
        observation: the job now.
        policy: what its owner allows; ``mode`` is the caller's business.
        state: what the last call returned (or a fresh one).
        now: Unix seconds.

    Returns:
        The decision and the state to keep. If the action is not ``stay``, the state holds the move;
        the caller makes it and then keeps ``state.with_change(now)``.
    """
    case = PsDecisionInput.from_observation(observation, policy, state, now)
    state, move, seen = case.state, case.state.move, observation
    if move is not None and not move.changed_at:
        return case.stay(f"the change of {move.change} is being made"), state
    if move is not None and seen.counts != move.target_size:
        state = dataclasses.replace(state, move=None)
        workers, servers = seen.counts
        return case.stay(f"set to {workers} workers and {servers} PS by someone else"), state
    if move is not None:
        return _verify(case, move)
    if not seen.steady:
        return case.stay("not all of its workers and servers train yet"), state
    if seen.cores_seconds is not None:
        since = f"the CPU limit was raised {seen.cores_seconds:.0f} s ago"
        return case.stay(f"{since}: what that brings is measured before its size is changed"), state
    if len(case.windows) < policy.settle_windows:
        have = f"{len(case.windows)} of {policy.settle_windows} windows"
        return case.stay(f"{have} measured at {_format_setup(seen.setup)}"), state
    if case.windows[-1].ended_at <= state.seen_until + policy.window_seconds / 2:
        return case.stay(NOTHING_NEW), state
    state = dataclasses.replace(state, seen_until=case.windows[-1].ended_at)
    return _optimise(dataclasses.replace(case, state=state))


def _verify(case: PsDecisionInput, move: Move) -> Decided:
    """Judge a change that was made: keep it, take it back, or wait for windows."""
    policy = case.policy
    if len(case.windows) < policy.settle_windows and not clearly_disappoints(case, move):
        waited = case.now - move.changed_at
        patience = policy.join_seconds * (CYCLE_JOINS if move.cycles else 1.0)
        if case.windows or case.observation.steady or waited <= patience:
            have = f"{len(case.windows)} of {policy.settle_windows} windows"
            return case.stay(
                f"verifying {_format_setup(case.observation.setup)}: {have}"
            ), case.state
        why = (
            f"{_format_setup(case.observation.setup)} did not train together within {waited:.0f} s"
        )
        return _roll_back(case, move, why)
    numbers = (
        f"{case.rate:.3g} steps/s at {_format_setup(case.observation.setup)}, "
        f"{move.baseline:.3g} before, "
        f"{move.predicted:.3g} predicted, {move.needed:.3g} needed"
    )
    done = dataclasses.replace(case.state, move=None, seen_until=case.windows[-1].ended_at)
    if case.rate >= move.needed * (1 - TOLERANCE):
        return case.stay(f"verified: {numbers}"), dataclasses.replace(done, verified=True)
    home = _fallback_setup(case, move)
    saved = case.cost(case.observation.setup, case.rate) - case.cost(home, move.baseline)
    late = saved <= case.change_cost(home, cycles=move.cycles) or case.nearly_done
    why = "too late to go back" if late else case.observation.suspend_blocker if move.cycles else ""
    if why:
        done = done.with_ban(move.target, policy.ban_seconds, case.now, move.target_servers)
        return case.stay(f"disappointing, but it stays: {why}; {numbers}"), done
    return _roll_back(case, move, numbers)


def _roll_back(case: PsDecisionInput, move: Move, why: str) -> Decided:
    """Ban the setup and go back to the one before, which alone takes servers away again."""
    if move.cycles and case.observation.suspend_blocker:
        return case.stay(
            f"{why}, and it cannot go back: {case.observation.suspend_blocker}"
        ), case.state
    state = case.state.with_ban(move.target, case.policy.ban_seconds, case.now, move.target_servers)
    minutes = (state.bans[-1].until - case.now) / 60
    back = Move(
        origin=move.target,
        target=move.origin,
        decided_at=case.now,
        rolls_back=True,
        baseline=case.rate,
        predicted=move.baseline,
        servers=move.target_servers,
        target_servers=move.servers,
        cycles=move.cycles,
    )
    reason = f"going back, {back.change}: {why}; not tried again for {minutes:.0f} min"
    back = dataclasses.replace(back, reason=reason)
    home = _fallback_setup(case, move)
    decision = case.decision(ROLL_BACK, home, reason, move.baseline, cycles=move.cycles)
    return decision, dataclasses.replace(state, move=back)


def _optimise(case: PsDecisionInput) -> Decided:
    """Find the cheapest setup within reach and see whether going there pays."""
    if case.nearly_done:
        return case.stay("nearly done"), case.state
    found = candidates(case)
    if not found:
        return case.stay(_no_candidate_reason(case)), case.state
    best = next((one for one in found if pays_off(case, one)), found[0])
    present = case.cost(case.observation.setup, case.rate)
    saving = (present - best.expected_cost) / present
    move = _move(case, best)
    known = (
        ""
        if case.observation.model
        else ", as if it were as fast as the others: nothing is known yet"
    )
    numbers = (
        f"{move.change}: {case.rate:.3g} -> {best.rate:.3g} steps/s predicted{known}, "
        f"{case.seconds_left:.0f} s of work left, "
        f"{case.change_seconds(cycles=best.cycles):.0f} s a "
        f"change{' through suspension' if best.cycles else ''}, saves {saving:.0%} of the cost"
    )
    if saving <= case.policy.hysteresis:
        least = f"less than {case.policy.hysteresis:.0%} is not worth it"
        return case.stay(f"{numbers}; {least}"), case.state
    if not pays_off(case, best):
        return case.stay(f"{numbers}; too little work left to earn the change twice"), case.state
    if why := _too_early(case, best, move):
        return case.stay(f"{numbers}; {why}"), case.state
    decision = case.decision(SCALE, best.setup, numbers, best.rate, cycles=best.cycles)
    move = dataclasses.replace(move, reason=numbers)
    return decision, dataclasses.replace(case.state, move=move)


def pays_off(case: PsDecisionInput, candidate: PsCandidate) -> bool:
    """Whether what the setup gains in the time left is twice what the change costs, by the law.

    Time where it is faster, cost where it is smaller.
    """
    if candidate.rate > case.rate:
        gained = case.seconds_left * (candidate.rate - case.rate)
        return gained > 2 * case.change_seconds(cycles=candidate.cycles) * candidate.rate
    saved = case.cost(case.observation.setup, case.rate) - case.cost(
        candidate.setup, candidate.rate
    )
    return saved > 2 * case.change_cost(candidate.setup, cycles=candidate.cycles)


def _too_early(case: PsDecisionInput, best: PsCandidate, move: Move) -> str:
    """Why not at once; empty if it may be.

    A change that was verified may be followed by another one of its direction.
    """
    state = case.state
    onwards = state.verified and (state.direction > 0) == (move.target_size > move.origin_size)
    wait = max(case.policy.cooldown_seconds, 5 * case.change_seconds(cycles=best.cycles))
    since = case.now - state.changed_at
    if not state.changed_at or onwards or since >= wait:
        return ""
    return f"{since:.0f} s since the last change, {wait:.0f} s are kept between two"


def _move(case: PsDecisionInput, candidate: PsCandidate) -> Move:
    here, there = case.observation.setup, candidate.setup
    return Move(
        origin=here.workers,
        target=there.workers,
        decided_at=case.now,
        baseline=case.rate,
        predicted=candidate.rate,
        needed=case.rate * case.cost_per_second(there) / case.cost_per_second(here),
        servers=here.servers,
        target_servers=there.servers,
        cycles=candidate.cycles,
    )


def _fallback_setup(case: PsDecisionInput, move: Move) -> ServerSetup:
    return dataclasses.replace(case.observation.setup, workers=move.origin, servers=move.servers)


def _no_candidate_reason(case: PsDecisionInput) -> str:
    if case.observation.model is None and not case.observation.live:
        return "what another size brings is not known: neither it nor a run alike has had another"
    if case.observation.suspend_blocker and not case.observation.live:
        return (
            f"its size changes through a suspension alone, and {case.observation.suspend_blocker}"
        )
    return "no other size may be tried now"


def _format_setup(setup: ServerSetup) -> str:
    return f"{setup.workers} workers and {setup.servers} PS"


NINE_IN_TEN = 1.645
"""Standard deviations on both sides, within which nine in ten lie."""
UNKNOWN_SPREAD = 0.4
"""In log space, of a worker more where nothing is known of it."""


@dataclasses.dataclass(frozen=True, slots=True)
class PsCandidate:
    """A setup that might be gone to."""

    setup: ServerSetup
    rate: float
    """Steps a second that are predicted there."""
    expected_cost: float
    """Expected cost of going there, with the way there and perhaps back."""
    cycles: bool
    """Whether all pods end for it."""


def candidates(case: PsDecisionInput) -> list[PsCandidate]:
    """Setups that are allowed, within reach and not banned, cheapest first."""
    banned = case.state.banned_setups(case.now)
    found = [
        _candidate(case, setup)
        for setup in _setups(case)
        if (setup.workers, setup.servers) not in banned
    ]
    return sorted(found, key=lambda offer: offer.expected_cost)


def needs_suspend(case: PsDecisionInput, setup: ServerSetup) -> bool:
    """Whether all pods have to end for a setup."""
    return not case.observation.live or setup.servers != case.observation.setup.servers


def _setups(case: PsDecisionInput) -> Iterator[ServerSetup]:
    here, law, policy = case.observation.setup, case.observation.model, case.policy
    near = [k for k in policy.allowed() if here.workers <= 2 * k and k <= 2 * here.workers]
    workers = [dataclasses.replace(here, workers=k) for k in near if k != here.workers]
    most = min(policy.max_servers, 2 * here.servers)
    servers = range(here.servers + 1, most + 1)
    for setup in (*workers, *(dataclasses.replace(here, servers=count) for count in servers)):
        if needs_suspend(case, setup) and case.observation.suspend_blocker:
            continue
        one_more = case.observation.live and setup.workers == here.workers + 1
        if one_more if law is None else law.reaches(setup):
            yield setup


def _candidate(case: PsDecisionInput, setup: ServerSetup) -> PsCandidate:
    ends, law, rate = needs_suspend(case, setup), case.observation.model, case.predict_rate(setup)
    spread = UNKNOWN_SPREAD if law is None else law.log_width / NINE_IN_TEN
    here = case.observation.setup
    back = case.cost(here, case.rate) + case.change_cost(here, cycles=ends)
    total = 0.0
    for quantile in QUANTILES:
        there = rate * math.exp(spread * quantile)
        total += min(case.cost(setup, there), back + _trial_cost(case, setup, there))
    total = total / len(QUANTILES) + case.change_cost(setup, cycles=ends)
    return PsCandidate(setup, rate, total, ends)


def _trial_cost(case: PsDecisionInput, setup: ServerSetup, rate: float) -> float:
    """What is lost while windows show that the setup is worse than the present one."""
    seconds = min(case.policy.settle_windows * case.policy.window_seconds, case.seconds_left)
    at_home = case.cost_per_second(case.observation.setup) / case.rate
    return max(0.0, seconds * case.cost_per_second(setup) - seconds * rate * at_home)
