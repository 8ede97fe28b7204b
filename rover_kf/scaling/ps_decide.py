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
import statistics
from collections.abc import Iterator

from rover_kf.api.decisions import ScaleDecision
from rover_kf.api.records import ServerSetup
from rover_kf.api.samples import Throughput
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
from rover_kf.scaling.ps_model import WINDOWS_PER_SETUP, PsModel
from rover_kf.scaling.scaling_state import Move, ScalingState, Settled

LIVE_SECONDS = 5.0
"""That a worker's coming or going is reckoned with: the others do not wait for it."""
NINE_IN_TEN = 1.645
"""Standard deviations on both sides, within which nine in ten lie."""
UNKNOWN_SPREAD = 0.4
"""In log space, of a worker more where nothing is known of it."""


@dataclasses.dataclass(frozen=True, slots=True)
class PsObservation:
    """A job with parameter servers in one moment."""

    setup: ServerSetup
    masters: int
    """The chief, which counts as one that costs."""
    steady: bool
    """Whether the chief trains and all workers and servers are at work."""
    windows: tuple[Throughput, ...] = ()
    """Of the chief, who counts the steps of all workers; oldest first, by our clock."""
    model: PsModel | None = None
    """None: one setup alone was ever seen."""
    steps_left: float | None = None
    seconds_left: float | None = None
    """As the ledger foretells, where the steps are not known."""
    share_left: float | None = None
    """Of all work; None: not known."""
    restart_seconds: float = 0.0
    """That processes took to begin anew in their pods; 0: they never did."""
    live: bool = False
    """Whether workers come and go while it runs."""
    suspend_blocker: str = ""
    """Why it cannot be suspended and resumed for a change; empty: it can."""
    raised_at: float = 0.0
    """Since when the present CPU limits hold; 0: from the begin on."""
    cores_seconds: float | None = None
    """Since a raise of CPU limits whose effect is not measured yet; None: there is none."""

    @property
    def counts(self) -> tuple[int, int]:
        """Workers and parameter servers."""
        return self.setup.workers, self.setup.servers


@dataclasses.dataclass(frozen=True, slots=True)
class PsProposal:
    """A job as scaling sees it, and where it would go, whatever there is room for."""

    current: PsObservation
    decision: ScaleDecision
    state: ScalingState
    """To be kept with the decision."""


def allowed_text(policy: AutoscalingPolicy, servers: int) -> str:
    """Return which sizes the policy allows a job with so many servers, for a person."""
    workers = policy.allowed_text()
    return f"{workers}, PS {servers}-{policy.max_servers}" if policy.max_servers else workers


def may_change(policy: AutoscalingPolicy, setup: ServerSetup) -> bool:
    """Whether any other size is allowed at all."""
    others = any(workers != setup.workers for workers in policy.allowed())
    return others or policy.max_servers > setup.servers


def decide(
    observation: PsObservation, policy: AutoscalingPolicy, state: ScalingState, *, now: float
) -> Decided:
    """Decide on one look at a job with parameter servers, as ``decide.decide`` does."""
    return PsDecision.from_observation(observation, policy, state, now).decide()


@dataclasses.dataclass(frozen=True, slots=True)
class PsDecision(DecisionInput[ServerSetup]):
    """A decision about workers and parameter servers; rates are steps a second of the whole job."""

    observation: PsObservation

    @classmethod
    def from_observation(
        cls, observation: PsObservation, policy: AutoscalingPolicy, state: ScalingState, now: float
    ) -> PsDecision:
        """The case, with who is at work noted in its state."""
        state = _with_settled(observation, state, now)
        windows, setup = _current_windows(observation, state), observation.setup
        rates = [_rate(window) for window in windows[-WINDOWS_PER_SETUP:]]
        rate = statistics.median(rates) if rates else 0.0
        seconds_left = observation.seconds_left
        if observation.steps_left is not None and rate:
            seconds_left = observation.steps_left / rate
        share = observation.share_left
        return cls(
            policy=policy,
            state=state,
            now=now,
            windows=windows,
            current=setup,
            label=f"{setup.workers} workers and {setup.servers} PS",
            steady=observation.steady,
            rate=rate,
            seconds_left=UNKNOWN_WORK_SECONDS if seconds_left is None else seconds_left,
            nearly_done=share is not None and share <= LAST_SHARE,
            allowed=allowed_text(policy, setup.servers),
            unit="steps/s",
            rate_format=".3g",
            observation=observation,
        )

    def counts(self, size: ServerSetup) -> tuple[int, int]:
        """Workers and parameter servers of a setup."""
        return size.workers, size.servers

    def cost_per_second(self, size: ServerSetup) -> float:
        """What a second of it costs, in workers; a server counts by its cores."""
        servers = size.servers * size.server_cores / self.current.worker_cores
        return size.workers + servers + self.observation.masters + self.policy.value_of_time

    def needs_suspend(self, setup: ServerSetup) -> bool:
        """Whether all pods have to end for a setup."""
        if self.counts(setup) == self.counts(self.current):
            return False
        return not self.observation.live or setup.servers != self.current.servers

    def change_seconds(self, size: ServerSetup) -> float:
        """That going to a setup takes."""
        if not self.needs_suspend(size):
            return LIVE_SECONDS
        guess = max(self.observation.restart_seconds, self.policy.restart_prior_seconds)
        return self.state.cycle_seconds or guess

    def fallback(self, move: Move) -> tuple[ServerSetup, float]:
        """The setup before, which alone takes servers away again."""
        setup = dataclasses.replace(self.current, workers=move.origin, servers=move.servers)
        return setup, move.baseline

    def return_blocker(self, move: Move) -> str:
        """Why a move cannot be taken back; empty if it can."""
        return self.observation.suspend_blocker if move.cycles else ""

    def predict_rate(self, setup: ServerSetup) -> float:
        """Steps a second of another setup: what the law says it brings, from the present rate on.

        Where there is no law, as if all workers were as fast as those that are here.
        """
        law = self.observation.model
        if law is None:
            return self.rate * setup.workers / self.current.workers
        return self.rate * law.steps_per_second(setup) / law.steps_per_second(self.current)

    def check(self) -> Decided | None:
        """Who does not train yet, and cores that come before more replicas."""
        if not self.steady:
            return self.stay("not all of its workers and servers train yet"), self.state
        if self.observation.cores_seconds is None:
            return None
        since = f"the CPU limit was raised {self.observation.cores_seconds:.0f} s ago"
        reason = f"{since}: what that brings is measured before its size is changed"
        return self.stay(reason), self.state

    def optimise(self) -> Decided:
        """Find the cheapest setup within reach and see whether going there pays."""
        if self.nearly_done:
            return self.stay("nearly done"), self.state
        law = self.observation.model
        spread = UNKNOWN_SPREAD if law is None else law.log_width / NINE_IN_TEN
        fallback = (self.current, self.rate)
        found = self.candidates(
            self._setups(law), lambda setup: (self.predict_rate(setup), spread), fallback
        )
        if not found:
            return self.stay(self._no_candidate_reason()), self.state
        best = next((one for one in found if self._pays_off(one)), found[0])
        present = self.cost(*fallback)
        saving = (present - best.expected_cost) / present
        move = self._move(best)
        known = ", as if it were as fast as the others: nothing is known yet"
        numbers = (
            f"{move.change}: {self.rate:.3g} -> {best.rate:.3g} steps/s predicted"
            f"{'' if law else known}, {self.seconds_left:.0f} s of work left, "
            f"{self.change_seconds(best.size):.0f} s a "
            f"change{' through suspension' if move.cycles else ''}, saves {saving:.0%} of the cost"
        )
        if saving <= self.policy.hysteresis:
            why = f"less than {self.policy.hysteresis:.0%} is not worth it"
        elif not self._pays_off(best):
            why = "too little work left to earn the change twice"
        else:
            why = self._too_early(best, move)
        if why:
            return self.stay(f"{numbers}; {why}"), self.state
        decision = self.decision(SCALE, best.size, numbers, best.rate)
        move = dataclasses.replace(move, reason=numbers)
        return decision, dataclasses.replace(self.state, move=move)

    def _setups(self, law: PsModel | None) -> Iterator[ServerSetup]:
        here, policy = self.current, self.policy
        near = [k for k in policy.allowed() if here.workers <= 2 * k and k <= 2 * here.workers]
        workers = [dataclasses.replace(here, workers=k) for k in near if k != here.workers]
        most = min(policy.max_servers, 2 * here.servers)
        servers = range(here.servers + 1, most + 1)
        for setup in (*workers, *(dataclasses.replace(here, servers=count) for count in servers)):
            if self.needs_suspend(setup) and self.observation.suspend_blocker:
                continue
            one_more = self.observation.live and setup.workers == here.workers + 1
            if one_more if law is None else law.reaches(setup):
                yield setup

    def _pays_off(self, candidate: Candidate[ServerSetup]) -> bool:
        """Whether what the setup gains in the time left is twice what the change costs, by the law.

        Time where it is faster, cost where it is smaller.
        """
        if candidate.rate > self.rate:
            gained = self.seconds_left * (candidate.rate - self.rate)
            return gained > 2 * self.change_seconds(candidate.size) * candidate.rate
        saved = self.cost(self.current, self.rate) - self.cost(candidate.size, candidate.rate)
        return saved > 2 * self.change_cost(candidate.size)

    def _too_early(self, best: Candidate[ServerSetup], move: Move) -> str:
        """Why not at once; empty if it may be.

        A change that was verified may be followed by another one of its direction.
        """
        state = self.state
        onwards = state.verified and (state.direction > 0) == (move.target_size > move.origin_size)
        return "" if onwards else self.pause_reason(self.change_seconds(best.size))

    def _move(self, candidate: Candidate[ServerSetup]) -> Move:
        here, there = self.current, candidate.size
        return Move(
            origin=here.workers,
            target=there.workers,
            decided_at=self.now,
            baseline=self.rate,
            predicted=candidate.rate,
            needed=self.rate * self.cost_per_second(there) / self.cost_per_second(here),
            servers=here.servers,
            target_servers=there.servers,
            cycles=self.needs_suspend(there),
        )

    def roll_back(self, move: Move, reason: str) -> Decided:
        """Ban the setup and go back to the one before."""
        if blocker := self.return_blocker(move):
            return self.stay(f"{reason}, and it cannot go back: {blocker}"), self.state
        state = self.state.with_ban(
            move.target, self.policy.ban_seconds, self.now, move.target_servers
        )
        minutes = (state.bans[-1].until - self.now) / 60
        back = Move(
            origin=move.target,
            target=move.origin,
            decided_at=self.now,
            rolls_back=True,
            baseline=self.rate,
            predicted=move.baseline,
            servers=move.target_servers,
            target_servers=move.servers,
            cycles=move.cycles,
        )
        reason = f"going back, {back.change}: {reason}; not tried again for {minutes:.0f} min"
        back = dataclasses.replace(back, reason=reason)
        decision = self.decision(ROLL_BACK, self.fallback(move)[0], reason, move.baseline)
        return decision, dataclasses.replace(state, move=back)

    def _no_candidate_reason(self) -> str:
        observation = self.observation
        if observation.model is None and not observation.live:
            return (
                "what another size brings is not known: neither it nor a run alike has had another"
            )
        if observation.suspend_blocker and not observation.live:
            blocker = observation.suspend_blocker
            return f"its size changes through a suspension alone, and {blocker}"
        return "no other size may be tried now"


def _with_settled(observation: PsObservation, state: ScalingState, now: float) -> ScalingState:
    """The state with since when all that the job asks for are at work."""
    known = state.settled
    if not observation.steady or (known and (known.workers, known.servers) == observation.counts):
        return state
    state = dataclasses.replace(state, settled=Settled(*observation.counts, now))
    move = state.move
    cycled = move is not None and move.cycles and move.changed_at
    if move is not None and cycled and observation.counts == move.target_size:
        state = dataclasses.replace(state, cycle_seconds=round(now - move.decided_at, 1))
    return state


def _current_windows(observation: PsObservation, state: ScalingState) -> tuple[Throughput, ...]:
    """Windows of the present setup, since all of it was at work."""
    known = state.settled
    if known is None or (known.workers, known.servers) != observation.counts:
        return ()
    since = max(known.since, observation.raised_at)
    return tuple(
        window for window in observation.windows if window.started_at >= since and window.steps > 0
    )


def _rate(window: Throughput) -> float:
    spent = window.ended_at - window.started_at - window.save_seconds
    return window.steps / max(spent, 1e-9)
