# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which pod keeps whose slots as well, one step at a time; pure.

Each pod the next one's, or each pod a parity of its group's (parity_groups.py). Only states that
are not replicated need it: of a replicated one every pod has all. A pod is spared its own node's
pods where there is another node, since a node is lost with all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rover_kf.api.checkpoints import Holding
from rover_kf.api.replication import ReplicateOrder
from rover_kf.sidecar import parity_groups

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


def orders(
    holdings: Sequence[Holding], parity_group: int, number: int
) -> dict[str, ReplicateOrder]:
    """What each pod shall do about a step; nothing for a single pod.

    Args:
        holdings: of the step, of all ranks.
        parity_group: fewest pods that share a parity; 0: each keeps a copy.
        number: of the orders.
    """
    if parity_group:
        lanes = parity_groups.lanes(holdings, parity_group)
        return {pod: ReplicateOrder(number, lanes=found) for pod, found in lanes.items()}
    return {
        pod: ReplicateOrder(number, tuple(h for h in holdings if h.pod == partner))
        for pod, partner in partners(holdings).items()
    }


@dataclasses.dataclass(slots=True)
class Ring:
    """What is copied now, and what is copied.

    Args:
        parity_group: fewest pods that share a parity; 0: each keeps a copy of another one's slots.
    """

    parity_group: int = 0
    number: int = 0
    """Counts orders."""
    under_way: Key | None = None
    replicated: Key | None = None
    """Newest step that every pod's partner holds."""
    _newest: tuple[Key, tuple[Holding, ...]] | None = None
    _orders: dict[str, ReplicateOrder] = dataclasses.field(default_factory=dict)
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
            self._orders = orders(holdings, self.parity_group, self.number + 1)
            if self._orders:
                self._open, self._failed = set(self._orders), False
                self.under_way, self.number = key, self.number + 1
        return self.under_way

    @property
    def lanes(self) -> parity_groups.Lanes:
        """What parities were ordered last, of each pod."""
        return {pod: order.lanes for pod, order in self._orders.items()}

    def order(self, pod: str) -> ReplicateOrder | None:
        """What the pod shall do now; None if it has done so."""
        return self._orders[pod] if self.under_way is not None and pod in self._open else None

    def finished(self, pod: str, number: int, *, done: bool) -> None:
        """A pod has copied its partner's slots or has its parities, or cannot."""
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
