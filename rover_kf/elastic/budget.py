# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How many rounds may end by a failure before the job does, of all kinds and of each; pure."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, slots=True)
class Budget:
    """Restarts allowed, and the rounds that were spent.

    A failure is counted once a round, whoever and however many report it. It spends the total, and
    what its kind may cost, where the policy states that.
    """

    allowed: int
    by_kind: tuple[tuple[str, int], ...] = ()
    """Of some kinds, how many of the restarts may be theirs."""
    spent: Mapping[int, str] = dataclasses.field(default_factory=dict)
    """The kind of failure by the round that it ended; empty: not known."""

    def spend(self, round_number: int, kind: str) -> Budget:
        """The budget after a failure in that round; of two kinds the one that is told last."""
        return dataclasses.replace(self, spent={**self.spent, round_number: kind})

    def recall(self, spent: Mapping[int, str]) -> Budget:
        """The budget with what an earlier coordinator had counted; what is known here stays."""
        return dataclasses.replace(self, spent={**spent, **self.spent})

    @property
    def overspent(self) -> str:
        """Which budget does not hold, in words; empty while all do."""
        counted = collections.Counter(self.spent.values())
        for kind, allowed in self.by_kind:
            if counted[kind] > allowed:
                return f"the budget of {allowed} restarts for {kind} is spent"
        if len(self.spent) > self.allowed:
            return f"the budget of {self.allowed} restarts is spent"
        return ""
