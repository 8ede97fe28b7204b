# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""On which terms slots are lent, to whom they are, and what is answered to reports of them."""

from __future__ import annotations

import dataclasses

from rover_kf.api.data import SlotSpan
from rover_kf.data_sharding.interval_set import IntervalSet

LATE, DUPLICATE, STALE = "late", "duplicate", "stale"
"""Why a report counts for nothing: the slots were handed on, are done, are another generation's."""
MAX_POISONED = 64
"""Whose reasons are kept; their slots are all kept."""


@dataclasses.dataclass(frozen=True, slots=True)
class LeaseTerms:
    """On which slots are lent."""

    lease_seconds: float | None = None
    """A worker that is not heard of for so long loses what it has; None: a generation ends sooner
    than anybody would be waited for."""
    tries: int = 3
    """After so many failures a shard is set aside."""
    retry_seconds: float = 1.0
    """Before slots that could not be read are handed out again; times the failures so far."""
    by_speed: bool = False
    """Near an epoch's end workers hold as much as goes with what they have done: for those that do
    not wait for each other."""


@dataclasses.dataclass(frozen=True, slots=True)
class RejectedSpan:
    """Slots of a report that count for nothing."""

    span: SlotSpan
    reason: str
    """LATE, DUPLICATE or STALE."""


@dataclasses.dataclass(frozen=True, slots=True)
class PoisonedSpan:
    """A part of a shard that could not be read."""

    span: SlotSpan
    tries: int
    reason: str
    """Of the last failure."""
    unusable: bool = False
    """It was read, and nothing could be made of it."""


@dataclasses.dataclass(slots=True)
class WorkerLeases:
    """What the ledger knows of a worker."""

    held: dict[str, IntervalSet]
    expires: float | None = None
    used: int = 0
    """Slots that it has reported as done, in this generation."""

    @property
    def outstanding(self) -> int:
        """Slots that it has."""
        return sum(ranges.total for ranges in self.held.values())
