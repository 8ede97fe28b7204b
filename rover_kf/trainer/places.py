# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How far the loaders of a state are through their epochs, for the coordinator's status.

Leased data are not among them: their ledger tells of itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from rover_kf.api.samples import DataPlace

_MOST = 16


@runtime_checkable
class Placed(Protocol):
    """An entry of a state that knows its place in a data set."""

    def data_place(self, name: str) -> DataPlace:
        """Where it is now; from any thread.

        Args:
            name: that the state has it under.
        """


class Places:
    """Of one training process."""

    def __init__(self) -> None:
        self._known: tuple[tuple[str, Placed], ...] = ()

    def attend(self, state: Mapping[str, object]) -> None:
        """Tell of the loaders of this state."""
        found = [
            (name, value)
            for name, value in state.items()
            if isinstance(value, Placed) and not isinstance(value, type)
        ]
        self._known = tuple(found[:_MOST])

    def now(self) -> tuple[DataPlace, ...]:
        """All of them; from any thread."""
        return tuple(value.data_place(name) for name, value in self._known)
