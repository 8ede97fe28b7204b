# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The numbers that bound a rendezvous; the coordinator takes them from its settings."""

from __future__ import annotations

import dataclasses

from rover_kf.api.policy import FailurePolicy


@dataclasses.dataclass(frozen=True, slots=True)
class RendezvousLimits:
    """Members and patience; every duration is in seconds."""

    nodes: int
    """Pods expected at first."""
    min_nodes: int
    """Fewest that may train."""
    max_nodes: int
    """Most that may train; a node rank beyond is told to idle."""
    sizes: tuple[int, ...] = ()
    """The only numbers of members that may train; empty: all between the fewest and the most."""
    failures: FailurePolicy = dataclasses.field(default_factory=FailurePolicy)
    first_round: int = 1
    """Least number of the first round: above every generation on storage."""
    lease: float = 6.0
    """A member not heard of for so long is lost."""
    stop_lease: float = 10.0
    """The same for one that was told to kill its processes: killing may take a while."""
    ack_timeout: float = 3.0
    """One that was told so and says nothing at all is lost already after this."""
    grace: float = 0.2
    """A closed connection counts as a death after so long, if the round broke or none runs."""
    poll: float = 1.0
    """A long poll is answered after so long at the latest,"""
    max_polls_per_second: float = 1000.0
    """but no more than so many a second: those of a larger world wait longer,"""
    max_poll: float = 10.0
    """though not longer than this; a launcher gives up after three times of it."""
    patience: float = 15.0
    """How long those present wait for pods that were never seen, if min_nodes are there."""
    settle: float = 1.5
    """How long a newcomer waits for other announced newcomers before the world drains."""
    exclusion_seconds: float = 60.0
    """How long a pod whose processes fail again and again is kept out at first; 0: never."""
    drain: float = 30.0
    """A drain that takes longer becomes a restart."""
    drain_notice: float = 1.0
    """Steps that pass in this time are added to the drain step, so that all ranks see it in time:
    a rank that learns of it late would go on alone. Training goes on meanwhile."""

    def largest_world(self, count: int) -> int:
        """Members of the largest world that so many may form; 0: none."""
        most = min(count, self.max_nodes)
        if self.sizes:
            most = max((size for size in self.sizes if size <= most), default=0)
        return most if most >= max(self.min_nodes, 1) else 0
