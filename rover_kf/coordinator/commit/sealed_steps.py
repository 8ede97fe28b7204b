# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the coordinator knows of seals in memory: the newest step, and the time they blocked."""

from __future__ import annotations

import dataclasses

from rover_kf.api.checkpoints import SlotInfo, SlotSealed

_SAVES, _SECONDS = 4, 10.0


"""Of one rank: ranks train in step, so one that has not saved meanwhile does not save at all. A
sidecar that is started anew, or slow, tells of a save some seconds late."""


class SavingRanks:
    """One a coordinator."""

    def __init__(self) -> None:
        self._round = 0
        self._steps: dict[int, set[int]] = {}
        """Of each rank that has saved in that round: how many suffices."""
        self._began = 0.0
        self._reported = False

    def ranks_not_saving(self, sealed: SlotSealed, now: float) -> tuple[int, ...]:
        """Take a report; ranks that never save, once a round.

        Args:
            sealed: by one rank.
            now: monotonic seconds.
        """
        if sealed.restored or sealed.round < self._round:
            return ()
        if sealed.round > self._round:
            self._round, self._steps, self._began, self._reported = sealed.round, {}, now, False
        saved = self._steps.setdefault(sealed.rank, set())
        if len(saved) < _SAVES:
            saved.add(sealed.step)
        if self._reported or len(saved) < _SAVES or now - self._began < _SECONDS:
            return ()
        self._reported = True
        return tuple(rank for rank in range(sealed.world_size) if rank not in self._steps)


_MAX_STEPS = 64


"""Steps whose reports may still come in."""


@dataclasses.dataclass(slots=True)
class _StepSeals:
    ranks: dict[int, SlotSealed]
    seconds: float = 0.0


class SealedSteps:
    """Counts seals of all ranks."""

    def __init__(self) -> None:
        self._steps: dict[tuple[int, int], _StepSeals] = {}
        self.step: int | None = None
        """Newest step that every rank could restore from memory."""
        self.snapshot_bytes = 0
        """Of the newest snapshot, one rank."""
        self.replicated: bool | None = None
        """Whether it holds all of the state; None before the first."""
        self.saves = 0
        self.seconds = 0.0
        """Blocked by saves, of each step the slowest rank's."""

    def add(self, sealed: SlotSealed) -> bool:
        """Count a report; says whether every rank has sealed its step by now."""
        known = self._steps.setdefault((sealed.round, sealed.step), _StepSeals({}))
        if not known.ranks and not sealed.restored:
            self.saves += 1
        known.ranks[sealed.rank] = sealed
        self.seconds += max(sealed.copy_seconds - known.seconds, 0.0)
        known.seconds = max(known.seconds, sealed.copy_seconds)
        self.snapshot_bytes, self.replicated = sealed.snapshot_bytes, sealed.replicated
        complete = len(known.ranks) >= sealed.world_size
        if sealed.replicated or complete:
            self.step = max(self.step or 0, sealed.step)
        while len(self._steps) > _MAX_STEPS:
            del self._steps[next(iter(self._steps))]
        return complete

    def is_complete_after(self, round_: int) -> bool:
        """Whether every rank of a later round has a slot of one step, restored or saved."""
        return any(
            number > round_ and len(known.ranks) >= max(s.world_size for s in known.ranks.values())
            for (number, _), known in self._steps.items()
        )

    def missing_ranks(self, step: int) -> tuple[int, ...]:
        """Ranks that have not saved a step which others have, in the newest round that has it."""
        rounds = [key for key in self._steps if key[1] == step]
        ranks = self._steps[max(rounds)].ranks if rounds else {}
        size = max((sealed.world_size for sealed in ranks.values()), default=0)
        return tuple(rank for rank in range(size) if rank not in ranks)

    def is_replicated(self, key: tuple[int, int]) -> bool:
        """Whether each slot of a step has all that any rank needs.

        Args:
            key: round and step.
        """
        return all(one.replicated for one in self._steps[key].ranks.values())

    def pod_count(self, key: tuple[int, int]) -> int:
        """How many pods have sealed a step.

        Args:
            key: round and step.
        """
        return len({sealed.pod for sealed in self._steps[key].ranks.values()})

    def holdings(self, key: tuple[int, int]) -> tuple[SlotInfo, ...]:
        """Where the slots of a step are, in rank order; only those with a checksum.

        Args:
            key: round and step.
        """
        ranks = self._steps[key].ranks
        ordered = (ranks[rank] for rank in sorted(ranks))
        return tuple(_holding(one) for one in ordered if one.checksum)

    def restart(self, step: int | None) -> None:
        """A round begins at that step: what was sealed beyond it is given up."""
        self.step = step
        self._steps.clear()


def _holding(sealed: SlotSealed) -> SlotInfo:
    return SlotInfo(
        pod=sealed.pod,
        address=sealed.address,
        local_rank=sealed.local_rank,
        rank=sealed.rank,
        world_size=sealed.world_size,
        step=sealed.step,
        replicated=sealed.replicated,
        snapshot_bytes=sealed.snapshot_bytes,
        checksum=sealed.checksum or 0,
        origin_round=sealed.origin_round or sealed.round,
        pieces=sealed.pieces,
        node=sealed.node,
    )
