# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a decision about a job with parameter servers reckons with: its setup, law, prices; pure."""

from __future__ import annotations

import dataclasses
import statistics

from rover_kf.api.decisions import ScaleDecision
from rover_kf.api.records import ServerSetup
from rover_kf.api.samples import Throughput
from rover_kf.scaling.decision_input import (
    LAST_SHARE,
    LATE_PRICE,
    STAY,
    UNKNOWN_WORK_SECONDS,
)
from rover_kf.scaling.policy import WatchPolicy
from rover_kf.scaling.ps_model import WINDOWS_PER_SETUP, ServerModel
from rover_kf.scaling.scaling_state import ScalingState, Settled

LIVE_SECONDS = 5.0
"""That a worker's coming or going is reckoned with: the others do not wait for it."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServerObservation:
    """A job with parameter servers in one moment."""

    setup: ServerSetup
    """As the job states it."""
    masters: int
    """The chief, which counts as one that costs."""
    steady: bool
    """Whether the chief trains and all workers and servers are at work."""
    windows: tuple[Throughput, ...] = ()
    """Of the chief, who counts the steps of all workers; oldest first, by our clock."""
    law: ServerModel | None = None
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
    stays: str = ""
    """Why it cannot be suspended and resumed for a change; empty: it can."""
    raised_at: float = 0.0
    """Since when the present CPU limits hold; 0: from the begin on."""
    cores_seconds: float | None = None
    """Since a raise of CPU limits whose effect is not measured yet; None: there is none."""

    @property
    def numbers(self) -> tuple[int, int]:
        """Workers and parameter servers."""
        return self.setup.workers, self.setup.servers


@dataclasses.dataclass(frozen=True, slots=True)
class ServerCase:
    """Everything that one decision reckons with."""

    seen: ServerObservation
    policy: WatchPolicy
    state: ScalingState
    now: float
    windows: tuple[Throughput, ...]
    """Whole ones of the present setup."""

    @classmethod
    def of(
        cls, seen: ServerObservation, policy: WatchPolicy, state: ScalingState, now: float
    ) -> ServerCase:
        """The case, with who is at work noted in its state."""
        state = _settled(seen, state, now)
        return cls(seen, policy, state, now, _windows_here(seen, state))

    @property
    def rate(self) -> float:
        """Steps a second of the whole job now; 0 if not measured."""
        found = [_rate(window) for window in self.windows[-WINDOWS_PER_SETUP:]]
        return statistics.median(found) if found else 0.0

    @property
    def seconds_left(self) -> float:
        """At the present pace."""
        if self.seen.steps_left is not None and self.rate:
            return self.seen.steps_left / self.rate
        told = self.seen.seconds_left
        return UNKNOWN_WORK_SECONDS if told is None else told

    @property
    def nearly_done(self) -> bool:
        """Whether only the last share of the work is left."""
        return self.seen.share_left is not None and self.seen.share_left <= LAST_SHARE

    def seconds(self, *, cycles: bool) -> float:
        """That a change takes.

        Args:
            cycles: whether all pods end for it.
        """
        if not cycles:
            return LIVE_SECONDS
        guess = max(self.seen.restart_seconds, self.policy.restart_prior_seconds)
        return self.state.cycle_seconds or guess

    def size(self, setup: ServerSetup) -> float:
        """What a second of it costs, in workers, with the price of waiting.

        A server counts by its cores.
        """
        servers = setup.servers * setup.server_cores / self.seen.setup.worker_cores
        return setup.workers + servers + self.seen.masters + self.policy.value_of_time

    def cost(self, setup: ServerSetup, rate: float) -> float:
        """Of the work left, in worker-seconds."""
        seconds = self.seconds_left * self.rate / rate
        late = 0.0
        if self.policy.deadline is not None:
            late = max(0.0, self.now + seconds - self.policy.deadline)
        return seconds * self.size(setup) + late * LATE_PRICE

    def change_cost(self, setup: ServerSetup, *, cycles: bool) -> float:
        """Of going to a setup."""
        return self.seconds(cycles=cycles) * self.size(setup)

    def predicted(self, setup: ServerSetup) -> float:
        """Steps a second of another setup: what the law says it brings, from the present rate on.

        Where there is no law, as if all workers were as fast as those that are here.
        """
        law, here = self.seen.law, self.seen.setup
        if law is None:
            return self.rate * setup.workers / here.workers
        return self.rate * law.steps_per_second(setup) / law.steps_per_second(here)

    def stay(self, reason: str) -> ScaleDecision:
        """A decision to stay."""
        return self.decision(STAY, self.seen.setup, reason, self.rate, cycles=False)

    def decision(
        self, action: str, target: ServerSetup, reason: str, predicted: float, *, cycles: bool
    ) -> ScaleDecision:
        """A decision with this case's measurements."""
        workers, servers = self.seen.numbers
        return ScaleDecision(
            at=self.now,
            action=action,
            current=workers,
            target=target.workers,
            reason=reason,
            measured=self.rate,
            predicted=predicted,
            restart_seconds=self.seconds(cycles=cycles),
            windows=len(self.windows),
            seconds_left=round(self.seconds_left, 1),
            allowed=allowed_text(self.policy, servers),
            banned=", ".join(
                f"{many} with {few} PS" for many, few in sorted(self.state.banned_setups(self.now))
            ),
            servers=servers,
            target_servers=target.servers,
        )


def allowed_text(policy: WatchPolicy, servers: int) -> str:
    """Which sizes the policy allows, for a person.

    Args:
        policy: of the job.
        servers: that it has.
    """
    workers = policy.allowed_text()
    return f"{workers}, PS {servers}-{policy.most_servers}" if policy.most_servers else workers


def may_change(policy: WatchPolicy, setup: ServerSetup) -> bool:
    """Whether any other size is allowed at all."""
    others = any(workers != setup.workers for workers in policy.allowed())
    return others or policy.most_servers > setup.servers


def _settled(seen: ServerObservation, state: ScalingState, now: float) -> ScalingState:
    """The state with since when all that the job asks for are at work."""
    known = state.settled
    if not seen.steady or (known and (known.workers, known.servers) == seen.numbers):
        return state
    state = dataclasses.replace(state, settled=Settled(*seen.numbers, now))
    move = state.move
    if move is not None and move.cycles and move.changed_at and seen.numbers == move.there:
        state = dataclasses.replace(state, cycle_seconds=round(now - move.decided_at, 1))
    return state


def _windows_here(seen: ServerObservation, state: ScalingState) -> tuple[Throughput, ...]:
    """Windows of the present setup, since all of it was at work."""
    known = state.settled
    if known is None or (known.workers, known.servers) != seen.numbers:
        return ()
    since = max(known.since, seen.raised_at)
    return tuple(
        window for window in seen.windows if window.started_at >= since and window.steps > 0
    )


def _rate(window: Throughput) -> float:
    spent = window.ended_at - window.started_at - window.save_seconds
    return window.steps / max(spent, 1e-9)
