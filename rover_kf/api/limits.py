# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a namespace may have: sizes of nodes, quotas, bounds of a container."""

from __future__ import annotations

import dataclasses
import math


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
