# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One partition's slots in an epoch: each is to be done, with a worker, done, or set aside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rover_kf import errors
from rover_kf.api.data import DataPlan, Partition, SlotSpan
from rover_kf.data_sharding.interval_set import IntervalSet


def build_partitions(
    plan: DataPlan, done: Mapping[str, str], poison: Mapping[str, str]
) -> dict[str, PartitionState]:
    """Return the state of each partition, those of the first stage first.

    Raises:
        CheckpointError: they are of other data.
    """
    names = {partition.name for partition in plan.partitions}
    strange = sorted({*done, *poison} - names)
    if strange:
        raise errors.CheckpointError(
            f"the checkpoint knows partitions {strange} of {plan.name!r}, which now has "
            f"{sorted(names)[:8]}; train on the same data"
        )
    return {
        partition.name: PartitionState(
            partition,
            plan.shard,
            IntervalSet.from_text(done.get(partition.name, "")),
            IntervalSet.from_text(poison.get(partition.name, "")),
        )
        for partition in sorted(plan.partitions, key=lambda partition: partition.stage)
    }


def active_partitions(partitions: Iterable[PartitionState]) -> list[PartitionState]:
    """Those of the lowest stage that is not over; who has most to do comes first."""
    known = list(partitions)
    active = (lane.partition for lane in known if lane.remaining > 0 or not lane.partition.bounded)
    stages = [partition.stage for partition in active]
    lowest = min(stages, default=0)
    found = [lane for lane in known if lane.partition.stage == lowest]
    return sorted(found, key=lambda lane: -lane.todo.total)


class PartitionState:
    """A partition's slots; a stream's end grows.

    Spans have at most ``shard`` slots and end at multiples of it.

    Raises:
        CheckpointError: slots are done that the partition does not have, or done and set aside.
    """

    def __init__(
        self, partition: Partition, shard: int, done: IntervalSet, poison: IntervalSet
    ) -> None:
        self.partition, self._shard = partition, shard
        self.end = partition.end
        self.done, self.poison = done, poison
        self.todo = IntervalSet([(partition.begin, partition.end)])
        for known in (done, poison):
            for begin, end in known:
                self._mark_seen(begin, end)
        twice = [piece for begin, end in poison for piece in done.intersect(begin, end)]
        if twice:  # of a stream that no longer has them; else they are not there to be set aside
            raise errors.CheckpointError(
                f"the checkpoint has slots {twice[0][0]} to {twice[0][1]} of partition "
                f"{partition.name!r} done and set aside; no checkpoint of rover-kf has: leave the "
                "data out of the state to begin anew"
            )

    @property
    def size(self) -> int:
        """Slots, as of now."""
        return self.end - self.partition.begin

    @property
    def remaining(self) -> int:
        """Slots that are neither done nor set aside."""
        return self.size - self.done.total - self.poison.total

    def grow(self, end: int) -> None:
        """A stream has more slots; an end that is behind what is known says nothing."""
        if not self.partition.bounded and end > self.end:
            self.todo.add(self.end, end)
            self.end = end

    def claim(self, max_slots: int) -> SlotSpan | None:
        """Take the next span, of one shard; None: all are leased, or used."""
        first = self.todo.first()
        if first is None:
            return None
        begin = first[0]
        end = min(first[1], (begin // self._shard + 1) * self._shard, begin + max_slots)
        self.todo.remove(begin, end)
        return SlotSpan(self.partition.name, begin, end)

    def _mark_seen(self, begin: int, end: int) -> None:
        self.grow(end)  # as far as a checkpoint has seen it
        if begin < self.partition.begin and not self.partition.bounded:
            begin = self.partition.begin  # what a stream no longer has
        if self.todo.remove(begin, end) != max(end - begin, 0):
            raise errors.CheckpointError(
                f"the checkpoint has slots {begin} to {end} of partition {self.partition.name!r} "
                f"done, which goes from {self.partition.begin} to {self.end}; train on the same "
                "data, or leave the data out of the state to begin anew"
            )
