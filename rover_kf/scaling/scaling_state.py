# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a decision sees and what it must remember between two looks.

The state is kept in the job's status annotation: whoever reads the job next, after any crash,
goes on from it. It is written *before* a change is made (the move) and again with the change.
"""

from __future__ import annotations

import dataclasses
import functools

from rover_kf.api.samples import Throughput
from rover_kf.scaling import throughput
from rover_kf.scaling.throughput import ThroughputModel

MAX_BANS = 8
"""Bans kept at one time, newest: the annotation is bounded."""

MAX_DOUBLINGS = 6
"""A ban of half an hour grows to at most 32 hours."""


@dataclasses.dataclass(frozen=True)
class JobObservation:
    """A job in one moment, as far as scaling cares."""

    replicas: int
    """Worker replicas that the job asks for."""
    masters: int
    """0 or 1; counts as a node that trains."""
    steady: bool
    """Every replica trains and nothing is being changed, recovered or drained."""
    windows: tuple[Throughput, ...]
    """Oldest first."""
    step: int
    total_steps: int | None = None
    restart_seconds: float = 0.0
    """Last measured cost of a change of the world; 0 if there was none."""
    unschedulable: int = 0
    """Of its Worker replicas, those that no node has room for while the others train."""
    unschedulable_seconds: float = 0.0
    """For how long that is so."""

    @property
    def nodes(self) -> int:
        """Pods that train."""
        return self.replicas + self.masters

    @functools.cached_property
    def model(self) -> ThroughputModel | None:
        """What its windows tell of other sizes, fitted once; None while they tell nothing."""
        return throughput.fit(self.windows)

    @property
    def processes_per_node(self) -> int:
        """By the newest window; 1 before there is one."""
        if not self.windows:
            return 1
        newest = self.windows[-1]
        return max(1, newest.world_size // max(1, newest.nodes))


@dataclasses.dataclass(frozen=True, slots=True)
class Move:
    """A change under way: intended, then made (changed_at), then verified or taken back."""

    origin: int
    target: int
    decided_at: float
    rolls_back: bool = False
    changed_at: float = 0.0
    """When replicas were patched; 0 before that."""
    baseline: float = 0.0
    """Samples per second at origin."""
    predicted: float = 0.0
    """Samples per second that the model promised at target."""
    needed: float = 0.0
    """Least samples per second at target that make it no worse than origin."""
    reason: str = ""
    fallback_size: int = 0
    """Size to go back to if the target disappoints; 0: origin. They differ where a size between
    the two is tried on the way back."""
    fallback_rate: float = 0.0
    """Samples per second there."""
    servers: int = 0
    """Parameter servers at origin; 0: the job has none, and rates are samples, not steps."""
    target_servers: int = 0
    cycles: bool = False
    """Whether the job is suspended for it, and resumed once all pods are gone."""

    @property
    def origin_size(self) -> tuple[int, int]:
        """Workers and parameter servers at origin."""
        return self.origin, self.servers

    @property
    def target_size(self) -> tuple[int, int]:
        """The same at target."""
        return self.target, self.target_servers

    @property
    def change(self) -> str:
        """For a person."""
        if self.servers != self.target_servers:
            return f"PS {self.servers} -> {self.target_servers}"
        return f"Worker {self.origin} -> {self.target}"

    @property
    def fallback(self) -> tuple[int, float]:
        """Size to go back to, and its samples per second."""
        if self.fallback_size:
            return self.fallback_size, self.fallback_rate
        return self.origin, self.baseline


@dataclasses.dataclass(frozen=True, slots=True)
class Ban:
    """A size that disappointed."""

    size: int
    until: float
    times: int = 1
    """How often it did; each time the ban is twice as long."""
    servers: int = 0
    """Parameter servers beside; 0: the job has none."""


@dataclasses.dataclass(frozen=True, slots=True)
class Settled:
    """Workers and parameter servers that were all seen at work."""

    workers: int
    servers: int
    since: float
    """Unix seconds."""


@dataclasses.dataclass(frozen=True, slots=True)
class ScalingState:
    """Memory of the watcher for one job."""

    move: Move | None = None
    changed_at: float = 0.0
    """Of the last change; 0 if there was none."""
    direction: int = 0
    """Of the last change: 1 up, -1 down, 0 none yet."""
    verified: bool = False
    """Whether the last change was verified: what it led to is no longer on trial."""
    votes: int = 0
    """Windows in a row that wanted to go in ``voted`` direction."""
    vote_direction: int = 0
    seen_until: float = 0.0
    """End of the newest window that was judged: no window votes twice."""
    bans: tuple[Ban, ...] = ()
    settled: Settled | None = None
    """Of a job with parameter servers."""
    cycle_seconds: float = 0.0
    """That its last suspension for a change took, until all were at work again; 0: none did."""

    def banned_setups(self, now: float) -> frozenset[tuple[int, int]]:
        """Workers and parameter servers that are not tried together now."""
        return frozenset((ban.size, ban.servers) for ban in self.bans if ban.until > now)

    def with_ban(self, size: int, seconds: float, now: float, servers: int = 0) -> ScalingState:
        """The state with a ban of the size: so many seconds, doubled for each ban before."""
        same = [ban for ban in self.bans if (ban.size, ban.servers) == (size, servers)]
        times = same[0].times if same else 0
        kept = [ban for ban in self.bans if ban not in same]
        ban = Ban(size, now + seconds * 2 ** min(times, MAX_DOUBLINGS), times + 1, servers)
        return dataclasses.replace(self, bans=(*kept, ban)[-MAX_BANS:])

    def with_change(self, now: float) -> ScalingState:
        """The state once the move's target is what the job asks for."""
        if self.move is None:
            return self
        made = dataclasses.replace(self.move, changed_at=now)
        direction = 1 if made.target_size > made.origin_size else -1
        return dataclasses.replace(
            self,
            # A roll-back goes to a size that is known: there is nothing to verify.
            move=None if made.rolls_back else made,
            changed_at=now,
            direction=direction,
            verified=False,
            votes=0,
            vote_direction=0,
        )
