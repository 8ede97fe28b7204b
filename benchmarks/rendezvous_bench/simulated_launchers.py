# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Any number of simulated launchers before the real state machine, in simulated time.

Each says what a launcher says, when it would: it joins, asks again when a long poll ends without
news, watches while its processes would train, reports a death. Only the state machine's own work is
metered.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from typing import Protocol

from rover_kf.api.membership import (
    Failure,
    JoinReply,
    JoinRequest,
    Member,
    WatchReply,
    WatchRequest,
)
from rover_kf.elastic.rendezvous.effects import Effect, SendReply
from rover_kf.elastic.rendezvous.rendezvous import Rendezvous
from rover_kf.elastic.rendezvous.rendezvous_limits import RendezvousLimits

TICK = 0.05
"""Seconds, as the coordinator ticks."""
ARRIVAL = 2.0
"""Seconds over which the launchers join."""


class Meter(Protocol):
    """Counts what is done while it is open."""

    def open(self) -> contextlib.AbstractContextManager[object]:
        """Count from now until it is left."""


@dataclasses.dataclass(slots=True)
class Agent:
    """One launcher."""

    member: Member
    round: int = 0
    trains: bool = False
    broken: bool = False


class Crowd:
    """A job of so many pods.

    Args:
        size: pods.
        meter: of the state machine's work.
    """

    def __init__(self, size: int, meter: Meter) -> None:
        limits = RendezvousLimits(nodes=size, min_nodes=1, max_nodes=size)
        self.rendezvous = Rendezvous(limits)
        self.now, self.calls = 0.0, 0
        self._meter = meter
        self._asking: dict[int, Agent] = {}
        self._tickets = 0
        pods = (f"train-worker-{rank}" for rank in range(size))
        self._agents = [
            Agent(Member(pod, incarnation(rank), rank, 1)) for rank, pod in enumerate(pods)
        ]
        self._silent: Iterator[Agent] = iter(self._agents)

    def form(self) -> None:
        """All come one by one, until one world trains."""
        each_tick = max(round(len(self._agents) * TICK / ARRIVAL), 1)
        while not all(agent.trains for agent in self._agents):
            for _, agent in zip(range(each_tick), self._silent, strict=False):
                self._ask(agent)
            self._tick()

    def watch(self, seconds: float) -> None:
        """Nothing happens but long polls."""
        until = self.now + seconds
        while self.now < until:
            self._tick()

    def lose_process(self) -> None:
        """A process of the last pod dies; until all train in another round."""
        number = self.rendezvous.world.round_number
        self._agents[-1].broken = True
        while not all(agent.round > number for agent in self._agents):
            self._tick()

    def _tick(self) -> None:
        self.now += TICK
        self._call(lambda: self.rendezvous.tick(self.now))

    def _ask(self, agent: Agent) -> None:
        self._tickets += 1
        ticket = self._tickets
        self._asking[ticket] = agent
        act = self._request(agent, ticket)
        self._call(act)

    def _request(self, agent: Agent, ticket: int) -> Callable[[], tuple[Effect, ...]]:
        member, job, now = agent.member, self.rendezvous, self.now
        if agent.trains and agent.broken:
            died = Failure(
                *("crashed", "process", "restart", "SIGSEGV"),
                pod=member.pod,
                incarnation=member.incarnation,
                round=agent.round,
                rank=member.node_rank,
                exit_code=-11,
            )
            return lambda: job.failure(died, ticket, now)
        if agent.trains:
            watch = WatchRequest(member.pod, member.incarnation, agent.round)
            return lambda: job.watch(watch, ticket, now)
        join = JoinRequest(member, "10.0.0.1", 29500, agent.round)
        return lambda: job.join(join, ticket, now)

    def _call(self, act: Callable[[], tuple[Effect, ...]]) -> None:
        with self._meter.open():
            effects = act()
        self.calls += 1
        again = [self._hear(effect) for effect in effects if isinstance(effect, SendReply)]
        for agent in again:
            if agent is not None:
                self._ask(agent)

    def _hear(self, answer: SendReply) -> Agent | None:
        agent, said = self._asking.pop(answer.ticket), answer.reply
        if isinstance(said, JoinReply) and said.round is not None:
            agent.round, agent.trains = said.round.number, True
        elif isinstance(said, WatchReply) and said.action == "restart":
            agent.trains = agent.broken = False
        return agent


def incarnation(rank: int) -> str:
    """As random as a launcher's: an order of many members compresses no better than a real one."""
    return hashlib.sha256(str(rank).encode()).hexdigest()[:12]
