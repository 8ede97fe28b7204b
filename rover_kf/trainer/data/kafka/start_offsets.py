# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Where each partition of a topic is read on: what is used, what is gone, where a job begins; pure.

What stands before a job's start counts as used, so that the state of a checkpoint says by itself
where the job began: whatever is not used and no longer there was lost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from rover_kf.api.data import Progress, Span
from rover_kf.data_sharding.interval_set import Ranges


@dataclasses.dataclass(frozen=True, slots=True)
class Beginnings:
    """Of all partitions."""

    progress: Progress
    """With all that nobody has to read."""
    offsets: Mapping[str, int]
    """The first one of each partition that is still to be read."""
    lost: tuple[Span, ...]
    """Not used, and not there any more."""


def begin(seen: Progress, oldest: Mapping[str, int], start: Mapping[str, int]) -> Beginnings:
    """Find them.

    Args:
        seen: what the restored state has used; empty where nothing was restored.
        oldest: of each partition the first offset that it still has.
        start: of each partition the offset at which a new job begins. A job that goes on reads
            partitions that are new to it as a whole.
    """
    known = {name: Ranges.from_text(text) for name, text in seen.done.items()}
    lost: list[Span] = []
    offsets: dict[str, int] = {}
    for name, first in oldest.items():
        done = known.setdefault(name, Ranges())
        if not seen.done:
            done.add(0, start[name])
        elif name in seen.done:
            poisoned = Ranges.from_text(seen.poison.get(name, ""))
            gone = (gap for hole in done.gaps(0, first) for gap in poisoned.gaps(*hole))
            lost.extend(Span(name, *gap) for gap in gone)
        done.add(0, first)
        offsets[name] = _first_gap(done)
    texts = {name: ranges.to_text() for name, ranges in sorted(known.items()) if ranges}
    return Beginnings(dataclasses.replace(seen, done=texts), offsets, tuple(lost))


def committed(progress: Progress) -> dict[str, int]:
    """The offset of each partition below which all is used or set aside: what a group commits."""
    found: dict[str, int] = {}
    for name in sorted({*progress.done, *progress.poison}):
        used = Ranges.from_text(progress.done.get(name, ""))
        for piece in Ranges.from_text(progress.poison.get(name, "")):
            used.add(*piece)
        found[name] = _first_gap(used)
    return found


def _first_gap(used: Ranges) -> int:
    first = used.first()
    return first[1] if first is not None and first[0] == 0 else 0
