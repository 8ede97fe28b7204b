# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The identity of a training state: which save, of which step, in which round.

Steps alone never identify a state: one comes again after a rollback, may be saved twice, and two
coordinators may run at a time. All states of a process have one owner, its job, which storage
checks (checkpoint.storage.claim).
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class RoundId:
    """A round of one coordinator; a later one is greater."""

    generation: int = 0
    """Of the coordinator that started the round: two coordinators never share one."""
    number: int = 0
    """Counted by that coordinator, or by its predecessor; 0: no coordinator has started it."""

    def __str__(self) -> str:
        return str(self.number)


NO_ROUND = RoundId()
"""Before every other."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class State:
    """One save of all ranks together; a later one is greater."""

    round: RoundId
    """In which it was saved, or in which it was restored before it was stored again."""
    step: int
    save: int = 1
    """Counts the saves of this step in this round; 0: a state that this round was restored from."""

    def __str__(self) -> str:
        again = f", save {self.save}" if self.save > 1 else ""
        return f"step {self.step} of round {self.round}{again}"

    @property
    def key(self) -> str:
        """For a path: ``<generation>-<round>-<step>-<save>``."""
        return f"{self.round.generation}-{self.round.number}-{self.step}-{self.save}"

    def restored_in(self, current: RoundId) -> State:
        """Return the name under which a round stores what it was restored from.

        The round's own saves keep their names.
        """
        return self if self.round == current else State(current, self.step, 0)


NO_STATE = State(NO_ROUND, 0, 0)
"""Before every other."""
