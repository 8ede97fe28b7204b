# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which pod keeps whose slots as well: each pod the next one's, one step at a time; pure.

Only states that are not replicated need it: of a replicated one every pod has all. A pod is spared
its own node's pods where there is another node, since a node is lost with all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rover_kf.api.checkpoints import Holding

Key = tuple[int, int]
"""Round, step."""


def partners(holdings: Sequence[Holding]) -> dict[str, str]:
    """Of each pod the one whose slots it keeps; nothing for a single pod.

    Args:
        holdings: of one step, of all ranks.
    """
    nodes = {holding.pod: holding.node for holding in sorted(holdings, key=lambda h: h.rank)}
    pods = list(nodes)
    found: dict[str, str] = {}
    for index, pod in enumerate(pods):
        others = [*pods[index + 1 :], *pods[:index]]
        # A pod elsewhere first, and one that nobody keeps yet before one that somebody does.
        others.sort(key=lambda other: (nodes[other] == nodes[pod] != "", other in found.values()))
        if others:
            found[pod] = others[0]
    return found


@dataclasses.dataclass(slots=True)
class Ring:
    """What is copied now, and what is copied."""

    number: int = 0
    """Counts orders."""
    under_way: Key | None = None
    replicated: Key | None = None
    """Newest step that every pod's partner holds."""
    _newest: tuple[Key, tuple[Holding, ...]] | None = None
    _orders: dict[str, tuple[Holding, ...]] = dataclasses.field(default_factory=dict)
    _open: set[str] = dataclasses.field(default_factory=set)
    _failed: bool = False

    @property
    def newest(self) -> tuple[Holding, ...]:
        """Of the newest step that every rank has sealed."""
        return self._newest[1] if self._newest else ()

    def sealed(self, key: Key, holdings: Sequence[Holding]) -> None:
        """Every rank has this step in memory."""
        if self._newest is None or key > self._newest[0]:
            self._newest = key, tuple(holdings)

    def due(self, persisting: Key | None) -> Key | None:
        """What is under way, or from now on.

        Args:
            persisting: the step that is being persisted. Its slots are pinned: to pin the others as
                well would stop training's saves, so no other step is copied meanwhile.
        """
        if self.under_way is not None or self._newest is None:
            return self.under_way
        key, holdings = self._newest
        new = self.replicated is None or key > self.replicated
        if new and persisting in (None, key):
            kept = partners(holdings)
            self._orders = {
                pod: tuple(h for h in holdings if h.pod == partner) for pod, partner in kept.items()
            }
            if self._orders:
                self._open, self._failed = set(self._orders), False
                self.under_way, self.number = key, self.number + 1
        return self.under_way

    def order(self, pod: str) -> tuple[Holding, ...]:
        """What the pod shall copy now; nothing if it has done so."""
        return self._orders[pod] if self.under_way is not None and pod in self._open else ()

    def finished(self, pod: str, number: int, *, done: bool) -> None:
        """A pod has copied its partner's slots, or cannot."""
        if number != self.number or self.under_way is None:
            return
        self._open.discard(pod)
        self._failed = self._failed or not done
        if not self._open:
            if not self._failed:
                self.replicated = self.under_way
            elif self._newest is not None and self._newest[0] == self.under_way:
                self._newest = None  # not again and again; the next step is tried
            self.under_way = None

    def restart(self) -> None:
        """A new round: its steps are copied anew."""
        self.under_way = self._newest = None
        self._open = set()
