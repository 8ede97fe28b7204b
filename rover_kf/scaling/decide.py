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
import statistics
from collections.abc import Iterable

from rover_kf.api.samples import Throughput
from rover_kf.scaling import throughput
from rover_kf.scaling.decision_input import (
    LAST_SHARE,
    ROLL_BACK,
    SCALE,
    UNKNOWN_WORK_SECONDS,
    Candidate,
    Decided,
    DecisionInput,
)
from rover_kf.scaling.policy import AutoscalingPolicy
from rover_kf.scaling.scaling_state import JobObservation, Move, ScalingState
from rover_kf.scaling.throughput import ThroughputModel

VOTES = 2
"""Windows in a row that a change of direction needs."""

STARVED = 0.1
"""Of a step, spent waiting for data: more is told where more replicas are reckoned with."""


def decide(
    observation: JobObservation, policy: AutoscalingPolicy, state: ScalingState, *, now: float
) -> Decided:
    """Decide on one look at a job; the policy's ``mode`` is the caller's business.

    Returns:
        The decision and the state to keep. If the action is not ``stay``, the state holds the move;
        the caller makes it and then keeps ``state.with_change(now)``.
    """
    return ReplicaDecision.from_observation(observation, policy, state, now).decide()


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicaDecision(DecisionInput[int]):
    """A decision about Worker replicas; rates are samples a second."""

    observation: JobObservation

    @classmethod
    def from_observation(
        cls, observation: JobObservation, policy: AutoscalingPolicy, state: ScalingState, now: float
    ) -> ReplicaDecision:
        """The case with the windows that speak of the present size."""
        windows, total = current_windows(observation, state), observation.total_steps
        left, seconds_left = 0, UNKNOWN_WORK_SECONDS
        if total is not None:
            left = total - observation.step
            seconds_left = max(0, left) * windows[-1].step_seconds if windows else seconds_left
        return cls(
            policy=policy,
            state=state,
            now=now,
            windows=windows,
            current=observation.replicas,
            label=f"{observation.replicas} replicas",
            steady=observation.steady,
            rate=throughput.median_throughput(windows) if windows else 0.0,
            seconds_left=seconds_left,
            nearly_done=total is not None and left <= LAST_SHARE * total,
            allowed=policy.allowed_text(),
            unit="samples/s",
            rate_format=".1f",
            observation=observation,
        )

    @property
    def data_wait_note(self) -> str:
        """What to try before more replicas where ranks wait for data; empty where they do not.

        It stops nothing: replicas bring loaders of their own, and what they gain is measured.
        """
        waits = [window.wait_fraction for window in self.windows]
        found = statistics.median(waits) if waits else 0.0
        if found <= STARVED:
            return ""
        return f"; {found:.0%} of a step waits for data: loader workers and CPU may gain as much"

    def counts(self, size: int) -> tuple[int, int]:
        """Workers, and no parameter server."""
        return size, 0

    def cost_per_second(self, size: int) -> float:
        """What a second costs, in replicas."""
        return size + self.observation.masters + self.policy.value_of_time

    def change_seconds(self, size: int) -> float:  # noqa: ARG002 - any change takes as long
        """That a change takes."""
        return self.observation.restart_seconds or self.policy.restart_prior_seconds

    def fallback(self, move: Move) -> tuple[int, float]:
        """Where to go back to, which need not be where the move came from."""
        return move.fallback

    def return_blocker(self, move: Move) -> str:  # noqa: ARG002 - of no move
        """Nothing: replicas can always go back."""
        return ""

    def world_size(self, replicas: int) -> int:
        """Ranks that the job has with so many Worker replicas."""
        return (replicas + self.observation.masters) * self.observation.processes_per_node

    def offers(
        self, model: ThroughputModel, sizes: Iterable[int], fallback: tuple[int, float]
    ) -> list[Candidate[int]]:
        """Those of the sizes that are not banned, cheapest first."""

        def predict(size: int) -> tuple[float, float]:
            world = self.world_size(size)
            return model.rate(world), model.spread(world)

        return self.candidates(sizes, predict, fallback)

    def check(self) -> Decided | None:
        """Who does not train yet, and the owner's bounds."""
        current, policy, allowed = self.current, self.policy, self.policy.allowed()
        if not self.steady:
            return self.stay("the job is not training steadily at its full size"), self.state
        if not allowed:
            return self.stay(f"no size is allowed: bounds {policy.min}..{policy.max}"), self.state
        if current in range(policy.min, policy.max + 1):
            return None
        # The owner's bounds also go before the limit of a factor of two.
        target = allowed[0] if current < allowed[0] else allowed[-1]
        reason = f"{current} replicas are outside of the allowed {allowed[0]}..{allowed[-1]}"
        model = self.observation.model
        rate = self.rate if model is None else model.rate(self.world_size(target))
        return self.start_move(target, rate, fallback=None, reason=reason)

    def optimise(self) -> Decided:
        """Find the cheapest size within reach and see whether going there pays."""
        current, policy = self.current, self.policy
        blocked = self._blocked()
        model = None if blocked else self.observation.model
        if model is None:
            return self.stay(blocked or "no throughput measured yet"), self.state
        fallback = (current, self.rate)
        near = [k for k in policy.allowed() if current <= 2 * k and k <= 2 * current]
        found = self.offers(model, [k for k in near if k != current], fallback)
        if not found:
            return self._reset(f"no other size than {current} may be tried now")
        size, rate = found[0].size, found[0].rate
        present = self.cost(*fallback)
        saving = (present - found[0].expected_cost) / present
        change_seconds = self.change_seconds(size)
        numbers = (
            f"{current} -> {size} replicas: {self.rate:.1f} -> {rate:.1f} samples/s predicted, "
            f"{self.seconds_left:.0f} s of work left, {change_seconds:.1f} s a change, "
            f"saves {saving:.0%} of the cost{self.data_wait_note if size > current else ''}"
        )
        if saving <= policy.hysteresis:
            return self._reset(f"{numbers}; less than {policy.hysteresis:.0%} is not worth it")
        earned = self.seconds_left * (rate - self.rate)
        if size > current and earned <= 2 * change_seconds * rate:
            return self._reset(f"{numbers}; too little work left to earn the change back")
        return self._confirm(size, rate, numbers)

    def _blocked(self) -> str:
        """Why no change may be made now whatever it would gain; empty if it may."""
        if self.nearly_done:
            return f"step {self.observation.step} of {self.observation.total_steps}: nearly done"
        return "" if self.state.verified else self.pause_reason(self.change_seconds(self.current))

    def _confirm(self, size: int, rate: float, numbers: str) -> Decided:
        """A reversal of direction needs two windows in a row that want it."""
        direction = 1 if size > self.current else -1
        votes = min(self.state.votes + 1, VOTES) if self.state.vote_direction == direction else 1
        state = dataclasses.replace(self.state, votes=votes, vote_direction=direction)
        if self.state.direction == -direction and votes < VOTES:
            return self.stay(f"{numbers}; a change of direction waits for a second window"), state
        fallback = (self.current, self.rate)
        voted = dataclasses.replace(self, state=state)
        return voted.start_move(size, rate, fallback=fallback, reason=numbers)

    def _reset(self, reason: str) -> Decided:
        return self.stay(reason), dataclasses.replace(self.state, votes=0, vote_direction=0)

    def roll_back(self, move: Move, reason: str) -> Decided:
        """Ban the size and leave it: for home, or for a size on the way that promises more."""
        state = self.state.with_ban(move.target, self.policy.ban_seconds, self.now)
        minutes = (state.bans[-1].until - self.now) / 60
        why = f"{reason}; not tried again for {minutes:.0f} min"
        case = dataclasses.replace(
            self, state=dataclasses.replace(state, votes=0, vote_direction=0)
        )
        fallback, fallback_rate = self.fallback(move)
        offer = case.better_candidate((fallback, fallback_rate))
        if offer is not None:
            reason = f"{offer.size} replicas promise more than going back to {fallback}: {why}"
            return case.start_move(
                offer.size, offer.rate, fallback=(fallback, fallback_rate), reason=reason
            )
        reason = f"going back to {fallback} replicas: {why}"
        back = Move(
            origin=move.target,
            target=fallback,
            decided_at=self.now,
            rolls_back=True,
            baseline=self.rate,
            predicted=fallback_rate,
            reason=reason,
        )
        decision = case.decision(ROLL_BACK, fallback, reason, fallback_rate)
        return decision, dataclasses.replace(case.state, move=back)

    def better_candidate(self, fallback: tuple[int, float]) -> Candidate[int] | None:
        """A size on the way that is expected to be cheaper than home: the restart is due anyway."""
        model = self.observation.model
        if model is None or not self.windows:
            return None
        low, high = sorted((fallback[0], self.current))
        between = [size for size in self.policy.allowed() if low < size < high]
        found = self.offers(model, between, fallback)
        there = self.cost(*fallback) + self.change_cost(fallback[0])
        return found[0] if found and found[0].expected_cost < there else None

    def start_move(
        self, target: int, rate: float, *, fallback: tuple[int, float] | None, reason: str
    ) -> Decided:
        """Go to the target, for the rate that is predicted there.

        With a size to go back to, and its rate, the target needs to be no dearer than that.
        """
        move = Move(
            origin=self.current,
            target=target,
            decided_at=self.now,
            baseline=self.rate,
            predicted=rate,
            reason=reason,
        )
        if fallback is not None:
            size, fallback_rate = fallback
            needed = fallback_rate * self.cost_per_second(target) / self.cost_per_second(size)
            move = dataclasses.replace(move, needed=needed)
            if size != self.current:
                move = dataclasses.replace(move, fallback_size=size, fallback_rate=fallback_rate)
        decision = self.decision(SCALE, target, reason, rate)
        return decision, dataclasses.replace(self.state, move=move)


def current_windows(observation: JobObservation, state: ScalingState) -> tuple[Throughput, ...]:
    """The unbroken run of newest windows at the present size, since the last change."""
    run: list[Throughput] = []
    for window in reversed(observation.windows):
        if window.nodes != observation.nodes or window.started_at < state.changed_at:
            break
        if window.step_seconds > 0:
            run.append(window)
    return tuple(reversed(run))
