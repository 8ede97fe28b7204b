# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Nodes that a job had better leave, and pods that the others wait for.

From the coordinator to the controller.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class FaultyNode:
    """A node on which training cannot go on, though elsewhere it can."""

    node: str
    """Its Kubernetes name."""
    pod: str
    """That showed it."""
    kind: str
    """Of the failure (docs/failures.md), or ``preflight``."""
    reason: str
    """One sentence."""
    observed_at: float
    """Unix seconds."""


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
