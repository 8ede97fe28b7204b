# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Every second of a job in one bucket; they sum to its age. Pure: the time is an argument.

Time moves in one direction here: what was accounted stays so. The seconds since the last entry go
to the current bucket, until it is known better (``claim``). Counted in whole microseconds, so that
the sum is exact however many entries there are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from rover_kf.api.samples import Goodput

BUCKETS = tuple(field.name for field in dataclasses.fields(Goodput))

_SECOND = 1_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class GoodputAccount:
    """Microseconds spent so far, and where the current ones go; Unix times."""

    started: int
    since: int
    """What is spent until then is accounted for."""
    bucket: str = "waiting"
    """Where the time since then goes."""
    spent: dict[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def begin(cls, timestamp: float) -> GoodputAccount:
        """An empty account; all times here are Unix seconds."""
        return cls(_microseconds(timestamp), _microseconds(timestamp))

    @classmethod
    def restore(
        cls, started_at: float, settled_at: float, *, bucket: str, spent: Mapping[str, float]
    ) -> GoodputAccount:
        """An account as it was: all of it in seconds."""
        whole = {name: _microseconds(seconds) for name, seconds in spent.items()}
        return cls(_microseconds(started_at), _microseconds(settled_at), bucket, whole)

    def enter(self, bucket: str, timestamp: float) -> GoodputAccount:
        """From then on time goes into that bucket; a time in the past is moved up."""
        if bucket not in BUCKETS:
            message = f"{bucket!r} is no bucket; there are {', '.join(BUCKETS)}"
            raise ValueError(message)
        since = max(_microseconds(timestamp), self.since)
        spent = _add_seconds(self.spent, self.bucket, since - self.since)
        return dataclasses.replace(self, since=since, bucket=bucket, spent=spent)

    def reassign(self, bucket: str) -> GoodputAccount:
        """The time that is not accounted for yet goes into that bucket, in place of the current."""
        return self.enter(bucket, self.since / _SECOND)

    def step(self, began: float, ended: float, *, saving: float, redone: bool) -> GoodputAccount:
        """A step was made, between times that may be accounted for already.

        Args:
            began: its start.
            ended: its end.
            saving: seconds of it that went into a checkpoint.
            redone: whether it had been made before, and was lost.
        """
        bucket = "redone" if redone else "productive"
        entered = self.enter(bucket, began)
        left = entered.enter(bucket, ended)
        saved = 0 if redone else min(max(_microseconds(saving), 0), left.since - entered.since)
        spent = _add_seconds(_add_seconds(left.spent, "checkpoint", saved), bucket, -saved)
        return dataclasses.replace(left, spent=spent)

    def totals(self, now: float) -> Goodput:
        """The account at this time."""
        spent = self.enter(self.bucket, now).spent
        return Goodput(**{bucket: spent.get(bucket, 0) / _SECOND for bucket in BUCKETS})

    def seconds(self) -> dict[str, float]:
        """What was spent by bucket, as far as that is settled."""
        return {bucket: amount / _SECOND for bucket, amount in self.spent.items()}

    @property
    def settled_at(self) -> float:
        """Until when that is known, in Unix seconds."""
        return self.since / _SECOND

    @property
    def started_at(self) -> float:
        """When it was begun, in Unix seconds."""
        return self.started / _SECOND


def _microseconds(seconds: float) -> int:
    return round(seconds * _SECOND)


def _add_seconds(spent: dict[str, int], bucket: str, amount: int) -> dict[str, int]:
    return {**spent, bucket: spent.get(bucket, 0) + amount} if amount else spent
