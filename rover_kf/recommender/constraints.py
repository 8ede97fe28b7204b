# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What may be had: the user's bounds, node sizes, LimitRange, ResourceQuota; pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from rover_kf.api.cluster_capacity import Headroom
from rover_kf.api.decisions import Quantity
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
    """See AutoscalingPolicy."""
    accelerator_memory: float | None = None
    """Bytes of one device."""
    nodes: tuple[Headroom, ...] = ()
    """What a pod can have on each node; empty: not known."""
    quotas: tuple[Headroom, ...] = ()
    """What the namespace may still ask for, by each of its quotas."""
    container_max: Headroom = dataclasses.field(default_factory=Headroom)
    """LimitRange's max of a container."""
    container_min: Headroom = dataclasses.field(default_factory=Headroom)
    """LimitRange's min."""
    network_bytes_per_second: float | None = None
    """Between two nodes; None: learned from the history, else assumed."""
    unread: tuple[str, ...] = ()
    """Bounds that could not be looked up, one sentence each."""

    def cpu(self, quantity: Quantity) -> Quantity:
        """The trainer's cores, within what may be had."""
        node = _largest((room.cpu for room in self.nodes), 2 * SIDECAR_CPU)
        most = _tightest(
            self.max_cpu, self.container_max.cpu, None if node is None else node - SIDECAR_CPU
        )
        return apply_bounds(quantity, most, self.container_min.cpu)

    def memory(self, quantity: Quantity, arena: Quantity) -> Quantity:
        """The trainer's memory, within what may be had beside the arena."""
        node = _largest((room.memory for room in self.nodes), sizing.SIDECAR_MEMORY)
        beside = sizing.SIDECAR_MEMORY + arena.target
        room = None if node is None else max(node - beside, node / 2)
        most = _tightest(self.max_memory, self.container_max.memory, room)
        return apply_bounds(quantity, most, self.container_min.memory)

    def replicas(self, need: Headroom) -> float:
        """How many pods of that size can be had at once; infinite without a bound."""
        found = [room.count_fitting(need) for room in self.quotas]
        if self.nodes:
            found.append(sum(room.count_fitting(need) for room in self.nodes))
        return min(found, default=math.inf)


def apply_bounds(
    quantity: Quantity, maximum: float | None, minimum: float | None = None
) -> Quantity:
    """The quantity, cut or raised to what may be had, and saying so."""
    most = math.inf if maximum is None else maximum
    if minimum is not None and quantity.target < minimum <= most:
        had = quantity.target
        why = f"{quantity.why}; raised from {had:g} to the {minimum:g} that is asked for"
        high = max(quantity.upper, minimum)
        quantity = dataclasses.replace(quantity, target=minimum, lower=minimum, upper=high, why=why)
    if maximum is None:
        return quantity
    if quantity.target <= maximum:
        return dataclasses.replace(quantity, upper=min(quantity.upper, maximum))
    return dataclasses.replace(
        quantity,
        target=maximum,
        lower=min(quantity.lower, maximum),
        upper=maximum,
        why=f"{quantity.why}; cut from {quantity.target:g} to the {maximum:g} that may be had",
    )


def required(cpu: Quantity, memory: Quantity, arena: Quantity, accelerators: int) -> Headroom:
    """What a pod asks for, the sidecar's share included."""
    return Headroom(
        cpu=cpu.target + SIDECAR_CPU,
        memory=memory.target + arena.target + sizing.SIDECAR_MEMORY,
        accelerators=float(accelerators),
        pods=1.0,
    )


def _tightest(*bounds: float | None) -> float | None:
    return min((bound for bound in bounds if bound is not None), default=None)


def _largest(sizes: Iterable[float | None], beside: float) -> float | None:
    """Of the nodes that have more than what stands beside the trainer; None if none has."""
    return max((size for size in sizes if size is not None and size > beside), default=None)
