# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""All ranks of a round ask what to restore; when the last one has, each gets its answer.

The coordinator's commits own one. A process may ask again (its sidecar or the connection was lost)
and gets the same answer, also of a coordinator that was killed after it had answered others: they
do not ask again. A rank that is alone may refuse its answer, and gets an older state. Whoever asks
for a round that is over must end: it belongs to an old world.

Of a state on storage every rank verifies what it reads, and none resumes before all have. Where one
finds damage, all ask again in the same round, and an older state is chosen.

Where no launcher has started the processes (torchrun in a shell), all of them name round 0, in
every life of the container. There the barrier counts the rounds: a new process in a rank's place
begins the next one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Sequence

from rover_kf import errors
from rover_kf.api.checkpoints import (
    RestoreStepReply,
    RestoreStepRequest,
    StorageRead,
    StorageReadReply,
)
from rover_kf.api.states import NO_ROUND, RoundId, State
from rover_kf.checkpoint import rank_ranges
from rover_kf.checkpoint.commit import Resumed
from rover_kf.coordinator.restore.plan_store import Plan, RestorePlanStore
from rover_kf.coordinator.restore.storage_reads import StorageReads
from rover_kf.sidecar.http.long_poll import LongPoll

_log = logging.getLogger(__name__)

Choose = Callable[[RoundId, Sequence[RestoreStepRequest]], Awaitable[Plan]]


@dataclasses.dataclass(frozen=True, slots=True)
class BarrierTimeout:
    """With ranks that have not asked: one may have a model to load that the others have."""

    seconds: float
    warn_after: float
    """Seconds."""


class RestoreBarrier:
    """The newest round's asks and their answer.

    Args:
        choose: called once a round, with one request of each rank.
        begin_round: takes a round when its first rank asks.
        store: where the newest answers outlive this process.
        warn: is told once a round of ranks that have not asked for long.
        timeout: of a rank that waits for the others to ask; what is chosen may take longer.
    """

    def __init__(
        self,
        choose: Choose,
        begin_round: Callable[[RoundId], None],
        store: RestorePlanStore,
        warn: Callable[[str], None],
        timeout: BarrierTimeout,
    ) -> None:
        self._choose, self._begin_round, self._warn = choose, begin_round, warn
        self._store, self._timeout = store, timeout
        self.generation = 0
        """Of this coordinator."""
        self._warned_round = NO_ROUND
        self._round = NO_ROUND
        self._lives: dict[int, str] = {}
        """Of the processes that have asked, by rank."""
        self._ended_lives: frozenset[str] = frozenset()
        """Of the processes before them."""
        self._requests: dict[int, RestoreStepRequest] = {}
        self._refused: frozenset[State] = frozenset()
        """By a rank that is alone, or since a rank found damage."""
        self.reads, self._poll = StorageReads(), LongPoll()
        """Of the state that the round restores."""
        self.damages: dict[State, str] = {}
        """What ranks found wrong in checkpoints on storage, of all rounds."""
        self._plan: asyncio.Future[Plan] | None = None
        self._choosing: asyncio.Task[None] | None = None

    @property
    def resumed_from(self) -> Resumed | None:
        """What the round that was answered last resumed from; None: none did."""
        if self._plan is None or not self._plan.done() or self._plan.exception() is not None:
            return None
        states = [reply.state for reply in self._plan.result().values() if reply.state is not None]
        return Resumed(self._round, states[0]) if states else None

    async def load_plan(self) -> None:
        """Resume the round that a coordinator of this pod had answered last."""
        found = self._store.read()
        if found is not None and found.round > self._round:
            self._start(found.round)
            self._lives = found.lives_by_rank
            self.reads = StorageReads(complete=found.verified)
            self._future().set_result(found.plan)

    async def wait(self, request: RestoreStepRequest) -> RestoreStepReply:
        """Answer a rank; waits for the others.

        Raises:
            InputError: the rank is not in the world that it names, or refuses what others take.
            CheckpointError: the round is over, ranks did not ask in time, or nothing fits.
        """
        self._check(request)
        self.damages.update({one.state: one.reason for one in request.damaged})
        if (current := self._round_of(request)) is not None:
            # Damage sends the same processes back here, a refusal the only one.
            lives = {request.life, *(self._lives.values() if request.damaged else ())}
            self._start(current)
            self._refused = _refused_states(request)
            self._ended_lives -= lives
        plan = self._future()
        if not request.round.number:  # a world that no launcher keeps may have another size now
            same = request.world_size
            self._requests = {r: q for r, q in self._requests.items() if q.world_size == same}
        waiting = not plan.done() and len(self._requests) < request.world_size
        self._requests[request.rank], self._lives[request.rank] = request, request.life
        if waiting and len(self._requests) == request.world_size:
            # A task of its own: who asked last may hang up, and the others wait for it, too.
            choosing = self._make_plan(plan, tuple(self._requests.values()))
            self._choosing = asyncio.create_task(choosing)
        current = self._round
        try:
            answers = await self._wait_for_plan(plan, request)
        except asyncio.CancelledError:
            self._forget(request)
            raise
        if request.rank not in answers:
            raise errors.InputError(f"round {current} has no rank {request.rank}")
        return dataclasses.replace(answers[request.rank], round=current)

    async def on_read(self, report: StorageRead) -> StorageReadReply:
        """Take what a rank has read of its state on storage; waits for the other ranks.

        Raises:
            CheckpointError: the round is over, or the rank found damage after all had verified it.
        """
        if report.state in self.damages and report.round == self._round:
            return StorageReadReply(complete=False, damage=self.damages[report.state])
        resumed, reads, plan = self.resumed_from, self.reads, self._plan
        if (
            resumed is None
            or plan is None
            or (resumed.round, resumed.state) != (report.round, report.state)
        ):
            raise errors.CheckpointError(
                f"round {report.round} restores {report.state} no more; this process must end"
            )
        if report.damage and reads.complete:
            raise errors.CheckpointError(report.damage)
        reads.add(report)
        if reads.damage and report.state not in self.damages:
            self.damages[report.state] = reads.damage
            folder = plan.result()[report.rank].path.rpartition("/")[2]
            self._warn(f"{folder} cannot be restored, trying an older one: {reads.damage}")
        elif reads.is_verified(report.world_size) and not reads.complete:
            reads.complete = True
            self._store.write(self._round, plan.result(), self._lives, verified=True)
        self._poll.notify()
        over = lambda: reads.complete or reads.ended or reads.damage or None  # noqa: E731 - of one line
        await self._poll.wait(over, report.timeout_seconds)
        if reads.ended and not reads.damage:
            raise errors.CheckpointError(f"round {self._round} has begun")
        return reads.reply(report.world_size)

    def _forget(self, request: RestoreStepRequest) -> None:
        """A process that no launcher has started is gone; its successor asks as another life."""
        incomplete = len(self._requests) < request.world_size
        if not request.round.number and incomplete and self._requests.get(request.rank) is request:
            del self._requests[request.rank]

    def _check(self, request: RestoreStepRequest) -> None:
        number = request.round.number
        if request.round < self._round if number else request.life in self._ended_lives:
            raise errors.CheckpointError(
                f"round {request.round} is over, round {self._round} runs; this process belongs to "
                "the old one and must end"
            )
        if not 0 <= request.rank < request.world_size:
            raise errors.InputError(
                f"rank {request.rank} is not in a world of {request.world_size}"
            )
        if request.rejected and request.world_size > 1:
            raise errors.InputError(
                f"rank {request.rank} of {request.world_size} refuses a step alone"
            )

    def _round_of(self, request: RestoreStepRequest) -> RoundId | None:
        """The round that begins with this request; None: it is of the one that runs."""
        refuses_more = not self._refused.issuperset(_refused_states(request))
        if request.round.number:
            begins = self._plan is None or request.round > self._round or refuses_more
            return request.round if begins else None
        is_answered = self._plan is not None and self._plan.done()
        is_new = self._lives.get(request.rank) != request.life
        if self._plan is None or refuses_more or (is_answered and is_new):
            return RoundId(self.generation, self._round.number + 1)
        return None

    async def _wait_for_plan(self, plan: asyncio.Future[Plan], request: RestoreStepRequest) -> Plan:
        first, whole = self._timeout.warn_after, self._timeout.seconds
        missing = await self._missing(plan, request, first)
        if missing:
            if self._warned_round < self._round:
                self._warned_round = self._round
                self._warn(
                    f"ranks {rank_ranges.format_ranks(missing)} of round {self._round} have not "
                    f"called restore in {first:g} s; the others wait for {whole:g} s in all"
                )
            missing = await self._missing(plan, request, whole - first)
        if missing:
            raise errors.CheckpointError(
                f"ranks {rank_ranges.format_ranks(missing)} of round {self._round} did not ask for "
                f"a checkpoint in {whole:g} s; every rank has to call restore"
            )
        # All have asked: storage may be slow to list what it has.
        return await asyncio.shield(plan)

    async def _missing(
        self, plan: asyncio.Future[Plan], request: RestoreStepRequest, seconds: float
    ) -> list[int]:
        """Ranks that have still not asked after so many seconds, if the plan waits for any."""
        await asyncio.wait({plan}, timeout=seconds)
        return [] if plan.done() else sorted(set(range(request.world_size)) - set(self._requests))

    def _start(self, current: RoundId) -> None:
        if self._choosing is not None:
            self._choosing.cancel()
        if self._plan is not None and not self._plan.done():
            _fail(self._plan, errors.CheckpointError(f"round {current} has begun"))
        self._round, self._requests, self._plan = current, {}, None
        self.reads.ended, self.reads = True, StorageReads()
        self._poll.notify()
        self._ended_lives, self._lives = frozenset(filter(None, self._lives.values())), {}
        self._refused = frozenset()
        self._begin_round(current)

    def _future(self) -> asyncio.Future[Plan]:
        if self._plan is None:
            self._plan = asyncio.get_running_loop().create_future()
        return self._plan

    async def _make_plan(
        self, plan: asyncio.Future[Plan], requests: Sequence[RestoreStepRequest]
    ) -> None:
        try:
            answers = await self._choose(self._round, requests)
        except errors.RoverError as error:
            if not plan.done():
                _fail(plan, error)
        except Exception as error:  # noqa: BLE001 - all ranks wait for it, and for nothing else
            _log.exception("mistake while choosing what round %s starts from", self._round)
            if not plan.done():
                _fail(plan, errors.CheckpointError(f"a mistake in the sidecar: {error!r}"))
        else:
            if not plan.done():
                self._store.write(self._round, answers, self._lives)
                plan.set_result(answers)


def _refused_states(request: RestoreStepRequest) -> frozenset[State]:
    return frozenset((*request.rejected, *(one.state for one in request.damaged)))


def _fail(plan: asyncio.Future[Plan], error: errors.RoverError) -> None:
    plan.set_exception(error)
    plan.exception()  # Whoever waits gets it; that nobody does is no mistake.
