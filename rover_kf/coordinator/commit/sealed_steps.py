# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the coordinator knows of seals in memory: the newest step, and the time they blocked."""

from __future__ import annotations

import dataclasses

from rover_kf.api.checkpoints import SlotInfo, SlotSealed
from rover_kf.api.states import NO_ROUND, State

_SAVES, _SECONDS = 4, 10.0
"""Of one rank: ranks train in step, so one that has not saved meanwhile does not save at all. A
sidecar that is started anew, or slow, tells of a save some seconds late."""


class SavingRanks:
    """One a coordinator."""

    def __init__(self) -> None:
        self._round = NO_ROUND
        self._saves: dict[int, set[State]] = {}
        """Of each rank that has saved in that round: how many suffices."""
        self._began = 0.0
        self._reported = False

    def ranks_not_saving(self, sealed: SlotSealed, now: float) -> tuple[int, ...]:
        """Take a report; ranks that never save, once a round.

        Args:
            sealed: by one rank.
            now: monotonic seconds.
        """
        if sealed.is_restored or sealed.round < self._round:
            return ()
        if sealed.round > self._round:
            self._round, self._saves, self._began, self._reported = sealed.round, {}, now, False
        saved = self._saves.setdefault(sealed.rank, set())
        if len(saved) < _SAVES:
            saved.add(sealed.state)
        if self._reported or len(saved) < _SAVES or now - self._began < _SECONDS:
            return ()
        self._reported = True
        return tuple(rank for rank in range(sealed.world_size) if rank not in self._saves)


_MAX_STATES = 64
"""States whose reports may still come in."""


@dataclasses.dataclass(slots=True)
class _StateSeals:
    ranks: dict[int, SlotSealed]
    seconds: float = 0.0


class SealedSteps:
    """Counts seals of all ranks."""

    def __init__(self) -> None:
        self._states: dict[State, _StateSeals] = {}
        """By their names on storage."""
        self.newest: State | None = None
        """That every rank could restore from memory."""
        self.snapshot_bytes = 0
        """Of the newest snapshot, one rank."""
        self.replicated: bool | None = None
        """Whether it holds all of the state; None before the first."""
        self.saves = 0
        self.seconds = 0.0
        """Blocked by saves, of each step the slowest rank's."""

    def add(self, sealed: SlotSealed) -> bool:
        """Count a report; says whether every rank has sealed its state by now."""
        known = self._states.setdefault(sealed.stored_as, _StateSeals({}))
        if not known.ranks and not sealed.is_restored:
            self.saves += 1
        known.ranks[sealed.rank] = sealed
        self.seconds += max(sealed.copy_seconds - known.seconds, 0.0)
        known.seconds = max(known.seconds, sealed.copy_seconds)
        self.snapshot_bytes, self.replicated = sealed.snapshot_bytes, sealed.replicated
        complete = len(known.ranks) >= sealed.world_size
        if sealed.replicated or complete:
            self.newest = max(self.newest or sealed.stored_as, sealed.stored_as)
        while len(self._states) > _MAX_STATES:
            del self._states[next(iter(self._states))]
        return complete

    def is_complete_after(self, round_: int) -> bool:
        """Whether every rank of a later round has a slot of one state, restored or saved."""
        return any(
            state.round.number > round_
            and len(known.ranks) >= max(s.world_size for s in known.ranks.values())
            for state, known in self._states.items()
        )

    def missing_ranks(self, state: State) -> tuple[int, ...]:
        """Ranks that have not saved a state which others have."""
        known = self._states.get(state)
        ranks = known.ranks if known else {}
        size = max((sealed.world_size for sealed in ranks.values()), default=0)
        return tuple(rank for rank in range(size) if rank not in ranks)

    def is_replicated(self, state: State) -> bool:
        """Whether each slot of a state has all that any rank needs."""
        return all(one.replicated for one in self._states[state].ranks.values())

    def pod_count(self, state: State) -> int:
        """How many pods have sealed a state."""
        return len({sealed.pod for sealed in self._states[state].ranks.values()})

    def holdings(self, state: State) -> tuple[SlotInfo, ...]:
        """Where the slots of a state are, in rank order; only those with a checksum."""
        ranks = self._states[state].ranks
        ordered = (ranks[rank] for rank in sorted(ranks))
        return tuple(_holding(one) for one in ordered if one.checksum)

    def restart(self, resumed: State | None) -> None:
        """A round begins with that state: what was sealed beyond it is given up."""
        self.newest = resumed
        self._states.clear()


def _holding(sealed: SlotSealed) -> SlotInfo:
    return SlotInfo(
        pod=sealed.pod,
        address=sealed.address,
        local_rank=sealed.local_rank,
        rank=sealed.rank,
        world_size=sealed.world_size,
        state=sealed.state,
        replicated=sealed.replicated,
        snapshot_bytes=sealed.snapshot_bytes,
        checksum=sealed.checksum or 0,
        pieces=sealed.pieces,
        node=sealed.node,
    )
