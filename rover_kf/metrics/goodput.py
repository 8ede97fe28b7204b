# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Every second of a job in one bucket; they sum to its age. Pure: the time is an argument.

The coordinator enters buckets as the world changes; blocked saves are moved out of the productive
seconds, since they lie inside them.
"""

from __future__ import annotations

import dataclasses

from rover_kf.api.samples import Goodput

BUCKETS = ("waiting", "productive", "recovery", "scaling")
"""What can be entered; ``checkpoint`` is taken out of ``productive``."""


@dataclasses.dataclass(frozen=True, slots=True)
class Account:
    """Seconds spent so far, and where the current ones go."""

    started_at: float
    bucket: str = "waiting"
    since: float = 0.0
    """When the current bucket was entered; never before started_at."""
    spent: tuple[tuple[str, float], ...] = ()
    save_seconds: float = 0.0

    def enter(self, bucket: str, now: float) -> Account:
        """From ``now`` on seconds go into that bucket; a time in the past is moved up."""
        if bucket not in BUCKETS:
            message = f"{bucket!r} is no bucket; there are {', '.join(BUCKETS)}"
            raise ValueError(message)
        since = max(self.since, self.started_at)
        now = max(now, since)
        spent = dict(self.spent)
        spent[self.bucket] = spent.get(self.bucket, 0.0) + now - since
        return dataclasses.replace(
            self, bucket=bucket, since=now, spent=tuple(sorted(spent.items()))
        )

    def save(self, seconds: float) -> Account:
        """Training was blocked by saving for so long."""
        return dataclasses.replace(self, save_seconds=self.save_seconds + max(seconds, 0.0))

    def totals(self, now: float) -> Goodput:
        """The account at this time."""
        spent = dict(self.enter(self.bucket, now).spent)
        productive = spent.get("productive", 0.0)
        blocked = min(self.save_seconds, productive)
        return Goodput(
            waiting=spent.get("waiting", 0.0),
            productive=productive - blocked,
            checkpoint=blocked,
            recovery=spent.get("recovery", 0.0),
            scaling=spent.get("scaling", 0.0),
        )
