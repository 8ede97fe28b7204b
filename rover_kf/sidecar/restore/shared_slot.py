# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The slot of a pod's first rank, from which the pod's other ranks start as well.

Where a pod keeps what all ranks hold alike once (``checkpoint.copy-per: pod``) it is there alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Iterator

from rover_kf import errors
from rover_kf.api.checkpoints import RestoreReply, RestoreRequest, RestoreStepReply
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.checkpoint.resharding import step_selection
from rover_kf.sidecar.http.long_poll import LongPoll
from rover_kf.sidecar.slots.rank_assignments import RankAssignment
from rover_kf.sidecar.slots.slots import PodSlots

_TIMEOUT_SECONDS = 900.0
"""For the first rank's slot to be filled; less than a training process has with its sidecar."""
_POLL_SECONDS = 0.05
"""How often a rank looks without being told: whether its round is over, or a slot was left."""


@dataclasses.dataclass(frozen=True, slots=True)
class SharedSlot:
    """What the pod's first rank goes on from in a round."""

    round: int
    seal: Seal
    source: str
    """As in RestoreReply."""


class SharedSlots:
    """One a sidecar.

    Args:
        slots: this pod's.
    """

    def __init__(self, slots: PodSlots) -> None:
        self._slots = slots
        self._restoring = 0
        self._published: SharedSlot | None = None
        self._refused: tuple[int, str] | None = None
        self._poll = LongPoll()

    @contextlib.contextmanager
    def restoring(self, request: RestoreRequest) -> Iterator[None]:
        """The first rank's restore is under way; a refusal is one for the others, too."""
        self._restoring += 1
        try:
            yield
        except errors.RoverError as error:
            self._refused = request.round, str(error)
            self._poll.notify()
            raise
        finally:
            self._restoring -= 1

    def publish(self, request: RestoreRequest, reply: RestoreReply, seal: Seal) -> None:
        """The first rank has its slot, verified."""
        self._published, self._refused = SharedSlot(request.round, seal, reply.source), None
        self._poll.notify()

    async def find(self, request: RestoreRequest, choice: RestoreStepReply) -> SharedSlot:
        """Wait for the first rank's slot.

        Args:
            request: of another rank.
            choice: the coordinator's; it has a step.

        Raises:
            CheckpointError: the first rank got none, or the round is over.
        """
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        mine = RankAssignment(request.rank, request.world_size, request.round)
        while True:
            changed = self._poll.next_change
            found = await self._find_available(request, choice)
            if found is not None:
                return found
            if self._refused is not None and self._refused[0] == request.round:
                raise errors.CheckpointError(
                    f"the pod's first rank, from whose slot this one starts: {self._refused[1]}"
                )
            if self._slots.assignments.get(request.local_rank) not in (None, mine):
                raise errors.CheckpointError(f"round {request.round} is over")
            if time.monotonic() > deadline:
                raise errors.CheckpointError(
                    f"the pod's first rank has not restored step {choice.step} for "
                    f"{_TIMEOUT_SECONDS:g} s, "
                    "and this one starts from its slot; call restore on every rank"
                )
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(changed.wait(), _POLL_SECONDS)

    async def _find_available(
        self, request: RestoreRequest, choice: RestoreStepReply
    ) -> SharedSlot | None:
        known = self._published
        if known is not None and (known.round, known.seal.step) == (request.round, choice.step):
            return known
        first = self._slots.assignments.get(0)
        if self._restoring or first is None or first.round != request.round:
            return None
        return await asyncio.to_thread(self._find_earlier, request, choice)

    def _find_earlier(self, request: RestoreRequest, choice: RestoreStepReply) -> SharedSlot | None:
        """What a sidecar before this one gave the first rank in this round."""
        for seal in self._slots.arena(0).find_seals(*step_selection.state_of(choice)):
            if seal.ranks > 1:
                with contextlib.suppress(errors.CorruptSnapshot):
                    self._slots.verify(0, seal)
                    return SharedSlot(request.round, seal, "memory")
        return None
