# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the loaders of a state tell: their places in epochs, and how long they were waited for.

Places of leased data are not among them: their ledger tells of itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from rover_kf.api.samples import DataPosition

_MOST = 16


@runtime_checkable
class HasPosition(Protocol):
    """An entry of a state that knows its place in a data set."""

    def data_place(self, name: str) -> DataPosition:
        """Return the position now; from any thread. The state has it under ``name``."""


@runtime_checkable
class HasWaitTime(Protocol):
    """An entry of a state that the training loop waits for."""

    def take_waited(self) -> float:
        """Seconds that the loop has waited for its data since it was asked last."""


class LoaderProgress:
    """The positions and wait times of one training process's loaders."""

    def __init__(self) -> None:
        self._positioned: tuple[tuple[str, HasPosition], ...] = ()
        self._waited_for: tuple[HasWaitTime, ...] = ()

    def watch_state(self, state: Mapping[str, object]) -> None:
        """Follow the loaders of this state."""
        values = (value for value in state.values() if not isinstance(value, type))
        self._waited_for = tuple(value for value in values if isinstance(value, HasWaitTime))
        found = [
            (name, value)
            for name, value in state.items()
            if isinstance(value, HasPosition) and not isinstance(value, type)
        ]
        self._positioned = tuple(found[:_MOST])

    def positions(self) -> tuple[DataPosition, ...]:
        """All of them; from any thread."""
        return tuple(value.data_place(name) for name, value in self._positioned)

    def take_waited(self) -> float:
        """Seconds that the loop has waited for data since it was asked last."""
        return sum(value.take_waited() for value in self._waited_for)
