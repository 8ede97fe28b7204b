# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Nodes that a job had better keep away from: from the coordinator to the controller."""

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
