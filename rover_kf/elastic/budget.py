# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How many rounds may end by a failure before the job does; pure."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Budget:
    """Restarts allowed, and the rounds that were spent.

    A failure is counted once a round, whoever and however many report it.
    """

    allowed: int
    spent: frozenset[int] = frozenset()

    def spend(self, round_number: int) -> Budget:
        """The budget after a failure in that round."""
        return dataclasses.replace(self, spent=self.spent | {round_number})

    @property
    def exhausted(self) -> bool:
        """Whether more was spent than allowed."""
        return len(self.spent) > self.allowed
