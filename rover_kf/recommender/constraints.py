# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What may be had: the user's bounds, node sizes, LimitRange, ResourceQuota; pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from rover_kf.api.decisions import Quantity
from rover_kf.api.limits import Room
from rover_kf.injection import sizing

SIDECAR_CPU = 0.05
"""Cores that injection asks for beside the trainer's."""


@dataclasses.dataclass(frozen=True, slots=True)
class Constraints:
    """What may be had at most; None is no bound."""

    max_replicas: int | None = None
    max_cpu: float | None = None
    """Cores of one replica."""
    max_memory: float | None = None
    """Bytes of one replica."""
    sizes: tuple[int, ...] = ()
    """Worker replicas to choose from; empty: all between the job's bounds."""
    value_of_time: float = 2.0
    """See WatchPolicy."""
    accelerator_memory: float | None = None
    """Bytes of one device."""
    nodes: tuple[Room, ...] = ()
    """What a pod can have on each node; empty: not known."""
    quotas: tuple[Room, ...] = ()
    """What the namespace may still ask for, by each of its quotas."""
    container_most: Room = dataclasses.field(default_factory=Room)
    """LimitRange's max of a container."""
    container_least: Room = dataclasses.field(default_factory=Room)
    """LimitRange's min."""
    network_bytes_per_second: float | None = None
    """Between two nodes; None: learned from the history, else assumed."""
    unread: tuple[str, ...] = ()
    """Bounds that could not be looked up, one sentence each."""

    def cpu(self, quantity: Quantity) -> Quantity:
        """The trainer's cores, within what may be had."""
        node = _largest((room.cpu for room in self.nodes), 2 * SIDECAR_CPU)
        most = _least(
            self.max_cpu, self.container_most.cpu, None if node is None else node - SIDECAR_CPU
        )
        return within(quantity, most, self.container_least.cpu)

    def memory(self, quantity: Quantity, arena: Quantity) -> Quantity:
        """The trainer's memory, within what may be had beside the arena."""
        node = _largest((room.memory for room in self.nodes), sizing.SIDECAR_MEMORY)
        beside = sizing.SIDECAR_MEMORY + arena.target
        room = None if node is None else max(node - beside, node / 2)
        most = _least(self.max_memory, self.container_most.memory, room)
        return within(quantity, most, self.container_least.memory)

    def replicas(self, need: Room) -> float:
        """How many pods of that size can be had at once; infinite without a bound."""
        found = [room.times(need) for room in self.quotas]
        if self.nodes:
            found.append(sum(room.times(need) for room in self.nodes))
        return min(found, default=math.inf)


def within(quantity: Quantity, most: float | None, least: float | None = None) -> Quantity:
    """The quantity, cut or raised to what may be had, and saying so."""
    if least is not None and quantity.target < least and (most is None or least <= most):
        why = f"{quantity.why}; raised from {quantity.target:g} to the {least:g} that is asked for"
        high = max(quantity.upper, least)
        quantity = dataclasses.replace(quantity, target=least, lower=least, upper=high, why=why)
    if most is None:
        return quantity
    if quantity.target <= most:
        return dataclasses.replace(quantity, upper=min(quantity.upper, max(most, quantity.target)))
    return dataclasses.replace(
        quantity,
        target=most,
        lower=min(quantity.lower, most),
        upper=most,
        why=f"{quantity.why}; cut from {quantity.target:g} to the {most:g} that may be had",
    )


def need(cpu: Quantity, memory: Quantity, arena: Quantity, accelerators: int) -> Room:
    """What a pod asks for, the sidecar's share included."""
    return Room(
        cpu=cpu.target + SIDECAR_CPU,
        memory=memory.target + arena.target + sizing.SIDECAR_MEMORY,
        accelerators=float(accelerators),
        pods=1.0,
    )


def _least(*bounds: float | None) -> float | None:
    return min((bound for bound in bounds if bound is not None), default=None)


def _largest(sizes: Iterable[float | None], beside: float) -> float | None:
    """Of the nodes that have more than what stands beside the trainer; None if none has."""
    return max((size for size in sizes if size is not None and size > beside), default=None)
