# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which workers take records of a shared ledger, and who has come and gone; pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

GRACE_SECONDS = 10.0
"""A ledger that begins anew has heard of nobody yet; all are back soon."""


@dataclasses.dataclass(slots=True)
class Attendance:
    """Of one data set; by rank, of which 0 is the chief, which takes none."""

    seen: dict[int, float] = dataclasses.field(default_factory=dict)
    """When each was last there."""

    def look(self, ranks: Iterable[int], now: float) -> tuple[list[int], list[int]]:
        """Who is new, and who is gone.

        Args:
            ranks: of those that the ledger knows.
            now: seconds of any steady clock.
        """
        here = set(ranks) - {0}
        came = sorted(here - self.seen.keys())
        went = sorted(
            rank for rank, at in self.seen.items() if rank not in here and now - at > GRACE_SECONDS
        )
        self.seen |= dict.fromkeys(here, now)
        for rank in went:
            del self.seen[rank]
        return came, went
