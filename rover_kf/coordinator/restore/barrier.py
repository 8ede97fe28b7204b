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
from rover_kf.api.checkpoints import ResolveReply, ResolveRequest
from rover_kf.checkpoint import rank_ranges
from rover_kf.coordinator.restore.plan_store import Plan, PlanFile

_log = logging.getLogger(__name__)

Choose = Callable[[Sequence[ResolveRequest]], Awaitable[Plan]]


@dataclasses.dataclass(frozen=True, slots=True)
class Patience:
    """With ranks that have not asked: one may have a model to load that the others have."""

    seconds: float
    warned_after: float
    """Seconds."""


class CommonStep:
    """The newest round's asks and their answer.

    Args:
        choose: called once a round, with one request of each rank.
        begin: told the number of a round when its first rank asks.
        kept: where the newest answers outlive this process.
        warn: is told once a round of ranks that have not asked for long.
        patience: of a rank that waits for the others to ask; what is chosen may take longer.
    """

    def __init__(
        self,
        choose: Choose,
        begin: Callable[[int], None],
        kept: PlanFile,
        warn: Callable[[str], None],
        patience: Patience,
    ) -> None:
        self._choose, self._begin, self._warn = choose, begin, warn
        self._kept, self._patience = kept, patience
        self._warned_of = 0
        self._number = 0
        self._asked: dict[int, ResolveRequest] = {}
        self._refused: frozenset[int] = frozenset()
        self._plan: asyncio.Future[Plan] | None = None
        self._choosing: asyncio.Task[None] | None = None

    @property
    def began(self) -> tuple[int, int] | None:
        """The round that was answered last, and the step that it goes on from; None: none does."""
        if self._plan is None or not self._plan.done() or self._plan.exception() is not None:
            return None
        steps = [reply.step for reply in self._plan.result().values() if reply.step is not None]
        return (self._number, steps[0]) if steps else None

    async def recall(self) -> None:
        """Go on with the round that a coordinator of this pod had answered last."""
        found = self._kept.read()
        if found is not None and found.round > self._number:
            self._start(found.round)
            self._future().set_result(found.plan)

    async def ask(self, asked: ResolveRequest) -> ResolveReply:
        """Answer a rank; waits for the others.

        Raises:
            InputError: the rank is not in the world that it names, or refuses what others take.
            CheckpointError: the round is over, ranks did not ask in time, or nothing fits.
        """
        if asked.round < self._number:
            raise errors.CheckpointError(
                f"round {asked.round} is over, round {self._number} runs; this process belongs to "
                "the old one and must end"
            )
        if not 0 <= asked.rank < asked.world_size:
            raise errors.InputError(f"rank {asked.rank} is not in a world of {asked.world_size}")
        if asked.refused and asked.world_size > 1:
            raise errors.InputError(f"rank {asked.rank} of {asked.world_size} refuses a step alone")
        anew = not self._refused.issuperset(asked.refused)
        if self._plan is None or asked.round > self._number or anew:
            self._start(asked.round)
            self._refused = frozenset(asked.refused)
        plan = self._future()
        waiting = not plan.done() and len(self._asked) < asked.world_size
        self._asked[asked.rank] = asked
        if waiting and len(self._asked) == asked.world_size:
            # A task of its own: who asked last may hang up, and the others wait for it, too.
            choosing = self._answer(plan, tuple(self._asked.values()))
            self._choosing = asyncio.create_task(choosing)
        answers = await self._answers(plan, asked)
        if asked.rank not in answers:
            raise errors.InputError(f"round {asked.round} has no rank {asked.rank}")
        return answers[asked.rank]

    async def _answers(self, plan: asyncio.Future[Plan], asked: ResolveRequest) -> Plan:
        first, whole = self._patience.warned_after, self._patience.seconds
        missing = await self._missing(plan, asked, first)
        if missing:
            if self._warned_of < asked.round:
                self._warned_of = asked.round
                self._warn(
                    f"ranks {rank_ranges.shown(missing)} of round {asked.round} have not called "
                    f"restore in {first:g} s; the others wait for {whole:g} s in all"
                )
            missing = await self._missing(plan, asked, whole - first)
        if missing:
            raise errors.CheckpointError(
                f"ranks {rank_ranges.shown(missing)} of round {asked.round} did not ask for a "
                f"checkpoint in {whole:g} s; every rank has to call restore"
            )
        # All have asked: a checkpoint on storage is read to the last byte, which may take long.
        return await asyncio.shield(plan)

    async def _missing(
        self, plan: asyncio.Future[Plan], asked: ResolveRequest, seconds: float
    ) -> list[int]:
        """Ranks that have still not asked after so many seconds, if the plan waits for any."""
        await asyncio.wait({plan}, timeout=seconds)
        return [] if plan.done() else sorted(set(range(asked.world_size)) - set(self._asked))

    def _start(self, number: int) -> None:
        if self._choosing is not None:
            self._choosing.cancel()
        if self._plan is not None and not self._plan.done():
            _refuse(self._plan, errors.CheckpointError(f"round {number} has begun"))
        self._number, self._asked, self._plan = number, {}, None
        self._refused = frozenset()
        self._begin(number)

    def _future(self) -> asyncio.Future[Plan]:
        if self._plan is None:
            self._plan = asyncio.get_running_loop().create_future()
        return self._plan

    async def _answer(self, plan: asyncio.Future[Plan], requests: Sequence[ResolveRequest]) -> None:
        try:
            answers = await self._choose(requests)
        except errors.RoverError as error:
            if not plan.done():
                _refuse(plan, error)
        except Exception as error:  # noqa: BLE001 - all ranks wait for it, and for nothing else
            _log.exception("mistake while choosing what round %d starts from", self._number)
            if not plan.done():
                _refuse(plan, errors.CheckpointError(f"a mistake in the sidecar: {error!r}"))
        else:
            if not plan.done():
                self._kept.write(self._number, answers)
                plan.set_result(answers)


def _refuse(plan: asyncio.Future[Plan], error: errors.RoverError) -> None:
    plan.set_exception(error)
    plan.exception()  # Whoever waits gets it; that nobody does is no mistake.
