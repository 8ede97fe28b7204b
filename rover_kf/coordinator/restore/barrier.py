# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""All ranks of a round ask what to restore; when the last one has, each gets its answer.

The coordinator's commits own one. A rank may ask again (its sidecar or the connection was lost) and
gets the same answer, also of a coordinator that was killed after it had answered others: they do
not ask again. A rank that is alone may refuse its answer, and gets an older step. Whoever asks for
a round that is over must end: it belongs to an old world.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Sequence

from rover_kf import errors
from rover_kf.api.checkpoints import RestoreStepReply, RestoreStepRequest
from rover_kf.checkpoint import rank_ranges
from rover_kf.coordinator.restore.plan_store import Plan, RestorePlanStore

_log = logging.getLogger(__name__)

Choose = Callable[[Sequence[RestoreStepRequest]], Awaitable[Plan]]


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
        begin_round: told the number of a round when its first rank asks.
        store: where the newest answers outlive this process.
        warn: is told once a round of ranks that have not asked for long.
        timeout: of a rank that waits for the others to ask; what is chosen may take longer.
    """

    def __init__(
        self,
        choose: Choose,
        begin_round: Callable[[int], None],
        store: RestorePlanStore,
        warn: Callable[[str], None],
        timeout: BarrierTimeout,
    ) -> None:
        self._choose, self._begin_round, self._warn = choose, begin_round, warn
        self._store, self._timeout = store, timeout
        self._warned_round = 0
        self._number = 0
        self._requests: dict[int, RestoreStepRequest] = {}
        self._refused: frozenset[int] = frozenset()
        self._plan: asyncio.Future[Plan] | None = None
        self._choosing: asyncio.Task[None] | None = None

    @property
    def resumed_from(self) -> tuple[int, int] | None:
        """The round that was answered last, and the step that it goes on from; None: none does."""
        if self._plan is None or not self._plan.done() or self._plan.exception() is not None:
            return None
        steps = [reply.step for reply in self._plan.result().values() if reply.step is not None]
        return (self._number, steps[0]) if steps else None

    async def load_plan(self) -> None:
        """Go on with the round that a coordinator of this pod had answered last."""
        found = self._store.read()
        if found is not None and found.round > self._number:
            self._start(found.round)
            self._future().set_result(found.plan)

    async def wait(self, request: RestoreStepRequest) -> RestoreStepReply:
        """Answer a rank; waits for the others.

        Raises:
            InputError: the rank is not in the world that it names, or refuses what others take.
            CheckpointError: the round is over, ranks did not ask in time, or nothing fits.
        """
        if request.round < self._number:
            raise errors.CheckpointError(
                f"round {request.round} is over, round {self._number} runs; this process "
                "belongs to "
                "the old one and must end"
            )
        if not 0 <= request.rank < request.world_size:
            raise errors.InputError(
                f"rank {request.rank} is not in a world of {request.world_size}"
            )
        if request.rejected_steps and request.world_size > 1:
            raise errors.InputError(
                f"rank {request.rank} of {request.world_size} refuses a step alone"
            )
        anew = not self._refused.issuperset(request.rejected_steps)
        if self._plan is None or request.round > self._number or anew:
            self._start(request.round)
            self._refused = frozenset(request.rejected_steps)
        plan = self._future()
        waiting = not plan.done() and len(self._requests) < request.world_size
        self._requests[request.rank] = request
        if waiting and len(self._requests) == request.world_size:
            # A task of its own: who asked last may hang up, and the others wait for it, too.
            choosing = self._make_plan(plan, tuple(self._requests.values()))
            self._choosing = asyncio.create_task(choosing)
        answers = await self._wait_for_plan(plan, request)
        if request.rank not in answers:
            raise errors.InputError(f"round {request.round} has no rank {request.rank}")
        return answers[request.rank]

    async def _wait_for_plan(self, plan: asyncio.Future[Plan], request: RestoreStepRequest) -> Plan:
        first, whole = self._timeout.warn_after, self._timeout.seconds
        missing = await self._missing(plan, request, first)
        if missing:
            if self._warned_round < request.round:
                self._warned_round = request.round
                self._warn(
                    f"ranks {rank_ranges.format_ranks(missing)} of round {request.round} "
                    "have not called "
                    f"restore in {first:g} s; the others wait for {whole:g} s in all"
                )
            missing = await self._missing(plan, request, whole - first)
        if missing:
            raise errors.CheckpointError(
                f"ranks {rank_ranges.format_ranks(missing)} of round {request.round} did "
                "not ask for a "
                f"checkpoint in {whole:g} s; every rank has to call restore"
            )
        # All have asked: a checkpoint on storage is read to the last byte, which may take long.
        return await asyncio.shield(plan)

    async def _missing(
        self, plan: asyncio.Future[Plan], request: RestoreStepRequest, seconds: float
    ) -> list[int]:
        """Ranks that have still not asked after so many seconds, if the plan waits for any."""
        await asyncio.wait({plan}, timeout=seconds)
        return [] if plan.done() else sorted(set(range(request.world_size)) - set(self._requests))

    def _start(self, number: int) -> None:
        if self._choosing is not None:
            self._choosing.cancel()
        if self._plan is not None and not self._plan.done():
            _fail(self._plan, errors.CheckpointError(f"round {number} has begun"))
        self._number, self._requests, self._plan = number, {}, None
        self._refused = frozenset()
        self._begin_round(number)

    def _future(self) -> asyncio.Future[Plan]:
        if self._plan is None:
            self._plan = asyncio.get_running_loop().create_future()
        return self._plan

    async def _make_plan(
        self, plan: asyncio.Future[Plan], requests: Sequence[RestoreStepRequest]
    ) -> None:
        try:
            answers = await self._choose(requests)
        except errors.RoverError as error:
            if not plan.done():
                _fail(plan, error)
        except Exception as error:  # noqa: BLE001 - all ranks wait for it, and for nothing else
            _log.exception("mistake while choosing what round %d starts from", self._number)
            if not plan.done():
                _fail(plan, errors.CheckpointError(f"a mistake in the sidecar: {error!r}"))
        else:
            if not plan.done():
                self._store.write(self._number, answers)
                plan.set_result(answers)


def _fail(plan: asyncio.Future[Plan], error: errors.RoverError) -> None:
    plan.set_exception(error)
    plan.exception()  # Whoever waits gets it; that nobody does is no mistake.
