# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which pod keeps whose slots as well, one step at a time; pure.

Each pod keeps another one's slots, or one pod beside the world keeps all of them. Only states that
are not replicated need it, and those of a single pod: of a replicated one every pod has all.
A slot protects a step only if another pod keeps it. So the placement is a permutation without fixed
points. A node is lost with all of its pods, so another node's pod is preferred.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence

from rover_kf.api.checkpoints import SlotInfo
from rover_kf.api.replication import ReplicateOrder
from rover_kf.api.states import State

COPY_TIMEOUT_SECONDS = 30.0
"""That a keeper has for a copy, besides what its bytes take. It may be lost and tell nothing, and
what waits for the copy, persisting other steps, must go on."""
MIN_KEEPER_RATE = 5 << 20
"""Bytes a second that a keeper copies at least."""


def choose_partners(holdings: Sequence[SlotInfo]) -> dict[str, str]:
    """Choose for each pod the pod whose slots it keeps; nothing for a single pod.

    Pods are sorted by node and rotated by the size of the largest node. No other rotation or
    permutation places more slots on another node. It places all of them there unless one node has
    more than half of the pods.

    Args:
        holdings: of one step, of all ranks.
    """
    nodes = {holding.pod: holding.node for holding in sorted(holdings, key=lambda h: h.rank)}
    pods = sorted(nodes, key=nodes.__getitem__)
    if len(pods) < 2:  # noqa: PLR2004 - a pod cannot keep its own slots
        return {}
    # A pod without a known node counts as alone on its own.
    largest = max(collections.Counter(node for node in nodes.values() if node).values(), default=1)
    distance = largest if largest < len(pods) else 1
    return {pod: pods[(index + distance) % len(pods)] for index, pod in enumerate(pods)}


def covers_all_ranks(orders: Mapping[str, ReplicateOrder]) -> bool:
    """Return whether the orders place every rank's state in a pod other than the rank's own."""
    copied = [slot for pod, order in orders.items() for slot in order.slots if slot.pod != pod]
    if any(slot.replicated for slot in copied):  # it holds all of the state
        return True
    return bool(copied) and {slot.rank for slot in copied} >= set(range(copied[0].world_size))


def plan_copies(
    holdings: Sequence[SlotInfo], number: int, keeper: str = ""
) -> dict[str, ReplicateOrder]:
    """What each pod shall do about a step; nothing for a single pod without a keeper.

    Args:
        holdings: of the step, of all ranks.
        number: of the orders.
        keeper: pod beside the world that copies all of it.
    """
    if keeper:
        return {keeper: ReplicateOrder(number, tuple(holdings))} if holdings else {}
    return {
        pod: ReplicateOrder(number, tuple(h for h in holdings if h.pod == partner))
        for pod, partner in choose_partners(holdings).items()
    }


@dataclasses.dataclass(slots=True)
class ReplicaPlacement:
    """What is copied now, and what is copied.

    Args:
        keeper: pod beside the world that copies all of it; empty: the world's pods do.
        min_keeper_rate: bytes a second that it copies at least.
    """

    number: int = 0
    """Counts orders."""
    in_progress: State | None = None
    replicated: State | None = None
    """Newest state of which another pod keeps every rank's slot."""
    keeper: str = ""
    min_keeper_rate: float = MIN_KEEPER_RATE
    _newest: tuple[State, tuple[SlotInfo, ...]] | None = None
    _orders: dict[str, ReplicateOrder] = dataclasses.field(default_factory=dict)
    _open: set[str] = dataclasses.field(default_factory=set)
    _failed: bool = False
    _dismissed: bool = False
    """A pod that is alone was told that it keeps nothing any more."""
    _until: float = math.inf
    """When the order that is under way is given up."""

    def on_sealed(self, state: State, holdings: Sequence[SlotInfo]) -> None:
        """Every rank has this state in memory."""
        if self._newest is None or state > self._newest[0]:
            self._newest = state, tuple(holdings)

    def copying(self, now: float) -> State | None:
        """What is under way and not given up.

        Args:
            now: monotonic seconds.
        """
        return self.in_progress if now < self._until else None

    def copy_again(self) -> None:
        """The keeper begins, perhaps with nothing: the newest step is copied once more."""
        if self.in_progress is None:
            self.replicated = None

    def due(self, persisting: State | None, now: float = 0.0) -> State | None:
        """What is under way, or from now on.

        Args:
            persisting: the step that is being persisted. Its slots are pinned: to pin the others as
                well would stop training's saves, so no other step is copied meanwhile.
            now: monotonic seconds.
        """
        if self.in_progress is not None and self.copying(now) is None:
            self.on_finished(self.keeper, self.number, done=False)
        if self.in_progress is not None or self._newest is None:
            return self.in_progress
        key, holdings = self._newest
        new = self.replicated is None or key > self.replicated
        if new and persisting in (None, key):
            number = self.number + 1
            self._orders = plan_copies(holdings, number, self.keeper)
            if not (self._orders or self.keeper or self._dismissed):
                pods = {holding.pod for holding in holdings}
                self._dismissed = len(pods) == 1
                self._orders = {pod: ReplicateOrder(number) for pod in pods if self._dismissed}
            if self._orders:
                self._until = now + self._copy_timeout(holdings)
                self._open, self._failed = set(self._orders), False
                self.in_progress, self.number = key, number
        return self.in_progress

    def order(self, pod: str) -> ReplicateOrder | None:
        """What the pod shall do now; None if it has done so."""
        return self._orders[pod] if self.in_progress is not None and pod in self._open else None

    def on_finished(self, pod: str, number: int, *, done: bool) -> None:
        """A pod has copied its partner's slots, or cannot."""
        if number != self.number or self.in_progress is None:
            return
        self._open.discard(pod)
        self._failed = self._failed or not done
        if not self._open:
            if covers_all_ranks(self._orders) and not self._failed:
                self.replicated = self.in_progress
            elif self._newest is not None and self._newest[0] == self.in_progress:
                self._newest = None  # not again and again; the next step is tried
            self.in_progress = None

    def _copy_timeout(self, holdings: Sequence[SlotInfo]) -> float:
        """A pod of the world that is lost ends the round, and with it its order."""
        if not self.keeper:
            return math.inf
        size = sum(holding.snapshot_bytes for holding in holdings)
        return COPY_TIMEOUT_SECONDS + size / self.min_keeper_rate

    def restart(self) -> None:
        """A new round: its steps are copied anew; who kept copies may be gone."""
        self.in_progress = self._newest = self.replicated = None
        self._open, self._dismissed = set(), False
