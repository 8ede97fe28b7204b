# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""In which pods the slots of the newest states are, also of ranks that left the world; pure.

A rank has two slots, and what a change of size has put together lies beside what it was made of.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from rover_kf.api.checkpoints import Holding

_REMEMBERED = 2
"""States, the newest ones."""

_State = tuple[int, int, int]
"""Round in which it came to be, step, ranks."""

States = tuple[tuple[Holding, ...], ...]
"""Of each state its slots, the newest last."""


class SlotPlaces:
    """One a coordinator."""

    def __init__(self) -> None:
        self._states: dict[_State, tuple[Holding, ...]] = {}

    @property
    def states(self) -> States:
        """What another one goes on with: it is told of each as sealed."""
        return tuple(self._states.values())

    def __iter__(self) -> Iterator[Holding]:
        """All that may still be there."""
        return itertools.chain.from_iterable(self._states.values())

    def sealed(self, holdings: Sequence[Holding]) -> None:
        """Every rank has sealed a state, or has restored it; these are its slots, one a rank."""
        for first in holdings[:1]:
            state = first.round, first.step, first.world_size
            self._states.pop(state, None)
            self._states[state] = tuple(holdings)
        while len(self._states) > _REMEMBERED:
            del self._states[next(iter(self._states))]

    def restart(self, step: int | None) -> None:
        """A round begins at that step, or with nothing: what came after it is given up."""
        self._states = {
            state: holdings
            for state, holdings in self._states.items()
            if step is not None and holdings[0].step <= step
        }
