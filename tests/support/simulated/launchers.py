# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Launchers and a coordinator in simulated time; messages are lost, doubled and reordered."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from rover_kf.api.coordinator_state import RendezvousState
from rover_kf.api.membership import (
    Failure,
    JoinReply,
    JoinRequest,
    LeaveRequest,
    Member,
    Round,
    WatchReply,
    WatchRequest,
)
from rover_kf.elastic.rendezvous import persisted_state
from rover_kf.elastic.rendezvous.effects import Effect, JobClosed, RoundStarted, SendReply
from rover_kf.elastic.rendezvous.rendezvous import Rendezvous
from rover_kf.elastic.rendezvous.rendezvous_limits import RendezvousLimits

Act = Callable[[Rendezvous, int, float], tuple[Effect, ...]]
"""A request on its way: whom it reaches, its ticket, when."""


@dataclasses.dataclass
class SimulatedLauncher:
    """What session.py and agent.py do, without processes."""

    rank: int
    incarnation: int = 0
    alive: bool = False
    last_round: int = 0
    world: Round | None = None
    """The round that its processes train in."""
    tell_world: bool = False
    drain_at: int = 0
    step: int = 0
    ticket: int | None = None
    broken: bool = False
    """A process has died; not reported yet."""
    counts: bool = False
    """Of its own accord: the budget pays for it."""
    kind: str = "crashed"
    """What it died of then."""
    leaving: bool = False
    """SIGTERM came; it goes once the world has drained."""

    @property
    def pod(self) -> str:
        """Its pod's name: stable, as a replaced pod's is."""
        return f"pod-{self.rank}"

    @property
    def member(self) -> Member:
        """As it introduces itself."""
        return Member(self.pod, f"i{self.incarnation}", self.rank, 1)

    def start(self) -> None:
        """A new process."""
        fresh = SimulatedLauncher(self.rank, self.incarnation + 1, alive=True)
        self.__dict__.update(fresh.__dict__)


class SimulatedJob:
    """All of it; every round that was ever formed is kept by number."""

    def __init__(self, limits: RendezvousLimits, pods: int) -> None:
        self.limits = limits
        self.now = 100.0
        self.rendezvous = Rendezvous(limits)
        self.launchers = [SimulatedLauncher(rank) for rank in range(pods)]
        self.rounds: dict[int, Round] = {}
        self.in_flight: list[tuple[int, Act]] = []
        """Requests that will arrive some time, by ticket."""
        self.copies: list[RendezvousState] = []
        """What a coordinator remembered, each time that some pod asked."""
        self.closed = 0
        self._tickets = 0

    def send(
        self,
        launcher: SimulatedLauncher,
        *,
        lost: bool = False,
        times: int = 1,
        late: bool = False,
    ) -> None:
        """The launcher's next request, unless one is open; a late one waits for ``arrive``."""
        if not launcher.alive or launcher.ticket is not None:
            return
        self._tickets += 1
        ticket = launcher.ticket = self._tickets
        if lost:
            launcher.ticket = None
            return
        act = self._request(launcher)
        for _ in range(times):
            if late:
                self.in_flight.append((ticket, act))
            else:
                self.apply(act(self.rendezvous, ticket, self.now))
            self._tickets += 1
            ticket = self._tickets  # the copy's answer finds nobody

    def arrive(self, number: int) -> None:
        """One of the requests on their way arrives, before or after any other."""
        if self.in_flight:
            ticket, act = self.in_flight.pop(number % len(self.in_flight))
            self.apply(act(self.rendezvous, ticket, self.now))

    def disconnect(self, launcher: SimulatedLauncher, *, noticed: bool) -> None:
        """The connection of its open request is gone; its answer is lost."""
        ticket, launcher.ticket = launcher.ticket, None
        if noticed and ticket is not None:
            self.apply(self.rendezvous.on_disconnect(ticket, self.now))

    def kill(self, launcher: SimulatedLauncher, *, noticed: bool) -> None:
        """The launcher and its processes are gone; its peers' collectives fail."""
        launcher.alive = False
        self.disconnect(launcher, noticed=noticed)
        self._hurt_peers(launcher)
        launcher.world = None

    def kill_process(
        self, launcher: SimulatedLauncher, *, counts: bool = False, kind: str = "crashed"
    ) -> None:
        """A training process dies."""
        if launcher.alive and launcher.world:
            launcher.broken, launcher.counts, launcher.kind = True, counts, kind
            self._hurt_peers(launcher)

    def leave(self, launcher: SimulatedLauncher) -> None:
        """The second SIGTERM, or the end of its patience."""
        if launcher.alive:
            self._hurt_peers(launcher)
            self._go(launcher, drained=False)

    def ask_to_leave(self, launcher: SimulatedLauncher) -> None:
        """SIGTERM: at once where nothing trains, else after a drain."""
        if launcher.alive and launcher.world is None:
            self._go(launcher, drained=False)
        elif launcher.alive:
            self.disconnect(launcher, noticed=True)
            launcher.leaving = True

    def restart_coordinator(self) -> None:
        """Its memory is gone; the storage knows the newest round."""
        first = max(self.rounds, default=0) + 1
        self.rendezvous = Rendezvous(dataclasses.replace(self.limits, first_round=first))
        for launcher in self.launchers:
            launcher.ticket = None

    def copy(self) -> None:
        """A pod fetches what the coordinator knows."""
        self.copies.append(persisted_state.export(self.rendezvous))

    def restart_from(self, told: RendezvousState, *, runs: bool) -> None:
        """Another coordinator goes on from that: its own pod's file, or some pod's copy."""
        self.restart_coordinator()
        self.apply(persisted_state.restore(self.rendezvous, told, self.now, is_running=runs))

    def advance(self, seconds: float) -> None:
        """Time passes; processes step, all ranks of a whole world together."""
        self.now += seconds
        self._train()
        self.apply(self.rendezvous.tick(self.now))

    def apply(self, effects: tuple[Effect, ...]) -> None:
        """Deliver what the coordinator wants done."""
        for effect in effects:
            if isinstance(effect, RoundStarted):
                number = effect.round.number
                known = self.rounds.setdefault(number, effect.round)
                assert known == effect.round, f"round {number} was formed twice"
                ranks = [member.node_rank for member in effect.round.members]
                assert ranks == sorted(set(ranks)), f"ranks out of order: {ranks}"
                assert self.limits.min_nodes <= len(ranks) <= self.limits.max_nodes
            elif isinstance(effect, SendReply):
                self._deliver(effect)
            elif isinstance(effect, JobClosed):
                self.closed += 1

    def describe(self) -> str:
        """For a failed assertion."""
        world = self.rendezvous.world
        seats = [(seat.member.pod, seat.phase.value) for seat in world.member_index.values()]
        told = [(one.pod, one.alive, one.last_round, one.broken) for one in self.launchers]
        return f"{seats} awaited {world.awaited_ranks} of {world.expected}, {world.closed}, {told}"

    def _request(self, launcher: SimulatedLauncher) -> Act:
        member = launcher.member
        if launcher.broken and launcher.world:
            failure = Failure(
                launcher.kind if launcher.counts else "peer_lost",
                "process",
                "restart",
                "a peer was lost",
                pod=member.pod,
                incarnation=member.incarnation,
                round=launcher.world.number,
                rank=launcher.rank,
                exit_code=1,
                consumes_budget=launcher.counts,
            )
            return lambda job, ticket, now: job.failure(failure, ticket, now)
        if launcher.world:
            world = launcher.world if launcher.tell_world else None
            request = WatchRequest(
                member.pod,
                member.incarnation,
                launcher.world.number,
                launcher.drain_at,
                world,
                launcher.leaving,
            )
            return lambda job, ticket, now: job.watch(request, ticket, now)
        join = JoinRequest(member, "host", 1000 + launcher.rank, launcher.last_round)
        return lambda job, ticket, now: job.join(join, ticket, now)

    def _deliver(self, effect: SendReply) -> None:
        launcher = next((one for one in self.launchers if one.ticket == effect.ticket), None)
        if launcher is None:
            return
        launcher.ticket, reply = None, effect.reply
        launcher.tell_world = reply.action == "report"
        if isinstance(reply, JoinReply) and reply.action == "start" and launcher.world is None:
            assert reply.round is not None
            launcher.world, launcher.last_round = reply.round, reply.round.number
            launcher.drain_at, launcher.step = 0, 0
            launcher.broken = launcher.counts = False
        elif isinstance(reply, WatchReply) and reply.action == "restart":
            self._hurt_peers(launcher)
            launcher.world, launcher.broken, launcher.counts = None, False, False
            if launcher.leaving:
                self._go(launcher, drained=False)
        elif isinstance(reply, WatchReply) and reply.drain_at:
            launcher.drain_at = reply.drain_at

    def _go(self, launcher: SimulatedLauncher, *, drained: bool) -> None:
        self.disconnect(launcher, noticed=True)
        launcher.alive, launcher.world = False, None
        incarnation = launcher.member.incarnation
        request = LeaveRequest(launcher.pod, incarnation, "SIGTERM", drained)
        self.apply(self.rendezvous.leave(request, self.now))

    def _hurt_peers(self, launcher: SimulatedLauncher) -> None:
        for peer in self.launchers:
            if peer is not launcher and peer.world and peer.world == launcher.world:
                peer.broken = True

    def _train(self) -> None:
        for number in {one.world.number for one in self.launchers if one.world}:
            crew = [one for one in self.launchers if one.world and one.world.number == number]
            whole = len(crew) == len(self.rounds[number].members)
            if not whole or any(one.broken for one in crew):
                continue
            step = crew[0].step + 1
            for one in crew:
                one.step = step
            self.apply(
                self.rendezvous.observe(number, step, seconds=0.1, ended_at=self.now, now=self.now)
            )
            drains = [one.drain_at for one in crew]
            if all(drains) and step >= max(drains):
                for one in crew:
                    # Its request is a watch: the launcher gives it up to join.
                    self.disconnect(one, noticed=True)
                    one.world = None
                    if one.leaving:
                        self._go(one, drained=True)
