# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""An epoch's partitions: where each begins, and which are handed out of now; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rover_kf import errors
from rover_kf.api.data import DataPlan
from rover_kf.sharding.lane import Lane
from rover_kf.sharding.ranges import Ranges


def begun(plan: DataPlan, done: Mapping[str, str], poison: Mapping[str, str]) -> dict[str, Lane]:
    """A lane for each partition, those of the first stage first.

    Args:
        plan: what there is.
        done: slots that are used already, by partition, as Progress has them.
        poison: slots that were set aside, likewise.

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
        partition.name: Lane(
            partition,
            plan.shard,
            Ranges.from_text(done.get(partition.name, "")),
            Ranges.from_text(poison.get(partition.name, "")),
        )
        for partition in sorted(plan.partitions, key=lambda partition: partition.stage)
    }


def open_of(lanes: Iterable[Lane]) -> list[Lane]:
    """Those of the lowest stage that is not over; who has most to do comes first."""
    known = list(lanes)
    stages = [lane.partition.stage for lane in known if _is_open(lane)]
    lowest = min(stages, default=0)
    found = [lane for lane in known if lane.partition.stage == lowest]
    return sorted(found, key=lambda lane: -lane.todo.total)


def _is_open(lane: Lane) -> bool:
    return lane.left > 0 or not lane.partition.bounded
