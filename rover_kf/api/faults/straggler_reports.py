# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that the others wait for: from the coordinator to the controller."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Straggler:
    """A pod one of whose ranks is slow by itself (elastic.stragglers has the rule)."""

    pod: str
    node: str
    """Its Kubernetes name; empty: not known."""
    rank: int
    ratio: float
    """Its own time a step over the others'."""
    since: float
    """When the rule began to hold; Unix seconds."""
