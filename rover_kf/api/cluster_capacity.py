# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What stands around a job in its cluster: room on nodes, quotas, limits, other autoscalers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from rover_kf.api.jobs import Manifest

Amounts = Mapping[str, float]
"""By resource: cores of ``cpu``, bytes of ``memory``, count of ``nvidia.com/gpu``, ``pods``, …"""


@dataclasses.dataclass(frozen=True, slots=True)
class NamespaceObjects:
    """What bounds a namespace, as plain objects."""

    quotas: tuple[Manifest, ...] = ()
    autoscalers: tuple[Manifest, ...] = ()
    unread: tuple[str, ...] = ()
    """One sentence for each kind that could not be read."""


@dataclasses.dataclass(frozen=True, slots=True)
class Taint:
    """What keeps pods away that do not tolerate it."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclasses.dataclass(frozen=True, slots=True)
class NodeCapacity:
    """What is left of a node for further pods."""

    name: str
    free: Amounts
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    taints: tuple[Taint, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class QuotaHeadroom:
    """What a ResourceQuota leaves, by its own keys (``requests.cpu``, ``pods``, …)."""

    name: str
    remaining: Amounts


@dataclasses.dataclass(frozen=True, slots=True)
class Autoscaler:
    """A HorizontalPodAutoscaler of the namespace, as KEDA makes them too."""

    name: str
    kind: str
    """Of what it scales."""
    target: str


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterCapacity:
    """What bounds a change of a job's size, beside the job itself."""

    nodes: tuple[NodeCapacity, ...] | None = None
    """That take pods now; None: not known, no bound."""
    quotas: tuple[QuotaHeadroom, ...] = ()
    """Of the job's namespace."""
    autoscalers: tuple[Autoscaler, ...] = ()
    """Of the job's namespace."""
    unread: tuple[str, ...] = ()
    """One sentence for each kind of bound that could not be read."""


@dataclasses.dataclass(frozen=True, slots=True)
class PodRequirements:
    """What one more pod of a job asks for, and where it may go."""

    requests: Amounts
    limits: Amounts = dataclasses.field(default_factory=dict)
    selector: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Labels that its node must have."""
    tolerations: tuple[tuple[str, str, str], ...] = ()
    """Key, value, effect; an empty one stands for any."""
    excluded_nodes: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class Headroom:
    """Cores, bytes, accelerators, pods; None is no bound."""

    cpu: float | None = None
    memory: float | None = None
    accelerators: float | None = None
    pods: float | None = None

    def count_fitting(self, need: Headroom) -> float:
        """How many of ``need`` go in; infinite without a bound."""
        pairs = (
            (self.cpu, need.cpu),
            (self.memory, need.memory),
            (self.accelerators, need.accelerators),
            (self.pods, need.pods),
        )
        shares = [had / wanted for had, wanted in pairs if had is not None and wanted]
        return math.floor(max(0.0, min(shares)) + 1e-9) if shares else math.inf


@dataclasses.dataclass(frozen=True, slots=True)
class NamespaceLimits:
    """Bounds as they were read; what could not be read is no bound, and named."""

    nodes: tuple[Headroom, ...] = ()
    """What pods can have on each node; empty: not known."""
    quotas: tuple[Headroom, ...] = ()
    """What may still be asked for, by each ResourceQuota."""
    container_max: Headroom = dataclasses.field(default_factory=Headroom)
    """LimitRange's max of a container."""
    container_min: Headroom = dataclasses.field(default_factory=Headroom)
    """LimitRange's min."""
    unread: tuple[str, ...] = ()
    """One sentence for each kind of bound that could not be read."""
