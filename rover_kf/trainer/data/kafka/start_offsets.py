# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Where each partition of a topic is read on: what is used, what is gone, where a job begins; pure.

What stands before a job's start counts as used, so that the state of a checkpoint says by itself
where the job began: whatever is not used and no longer there was lost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from rover_kf.api.data import DataProgress, SlotSpan
from rover_kf.data_sharding.interval_set import IntervalSet


@dataclasses.dataclass(frozen=True, slots=True)
class StartOffsets:
    """Where a job reads each partition."""

    progress: DataProgress
    """With all that nobody has to read."""
    offsets: Mapping[str, int]
    """The first one of each partition that is still to be read."""
    lost: tuple[SlotSpan, ...]
    """Not used, and not there any more."""


def find_start_offsets(
    restored: DataProgress, oldest: Mapping[str, int], start: Mapping[str, int]
) -> StartOffsets:
    """Compute where a job resumes, and what is lost.

    ``restored`` is empty where nothing was restored. ``oldest`` has the first offset that a
    partition still has, ``start`` the one at which a new job begins. A resumed job reads new
    partitions as a whole.
    """
    known = {name: IntervalSet.from_text(text) for name, text in restored.done.items()}
    lost: list[SlotSpan] = []
    offsets: dict[str, int] = {}
    for name, first in oldest.items():
        done = known.setdefault(name, IntervalSet())
        if not restored.done:
            done.add(0, start[name])
        elif name in restored.done:
            poisoned = IntervalSet.from_text(restored.poison.get(name, ""))
            gone = (gap for hole in done.gaps(0, first) for gap in poisoned.gaps(*hole))
            lost.extend(SlotSpan(name, *gap) for gap in gone)
        done.add(0, first)
        offsets[name] = _first_gap(done)
    texts = {name: ranges.to_text() for name, ranges in sorted(known.items()) if ranges}
    return StartOffsets(dataclasses.replace(restored, done=texts), offsets, tuple(lost))


def committable_offsets(progress: DataProgress) -> dict[str, int]:
    """The offset of each partition below which all is used or set aside: what a group commits."""
    found: dict[str, int] = {}
    for name in sorted({*progress.done, *progress.poison}):
        used = IntervalSet.from_text(progress.done.get(name, ""))
        for piece in IntervalSet.from_text(progress.poison.get(name, "")):
            used.add(*piece)
        found[name] = _first_gap(used)
    return found


def _first_gap(used: IntervalSet) -> int:
    first = used.first()
    return first[1] if first is not None and first[0] == 0 else 0
