# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""On which nodes replicas run; who keeps its number keeps its place."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

Hosts = tuple[tuple[int, int], ...]
"""(node, replicas there)."""


@dataclasses.dataclass(frozen=True, slots=True)
class NodePlacer:
    """Nodes that are alike."""

    nodes: int
    per_node: int

    def assign(
        self, sizes: Mapping[str, int], before: Mapping[str, Hosts], *, packs: bool
    ) -> dict[str, Hosts]:
        """Places of all jobs.

        Args:
            sizes: replicas of each job, in the order in which they are placed; 0 has no place.
            before: where they were.
            packs: large jobs first, on whole nodes, small ones where least is left over; else from
                the node with most room on.
        """
        places = {
            name: before[name]
            for name, size in sizes.items()
            if size and sum(count for _, count in before.get(name, ())) == size
        }
        free = dict.fromkeys(range(self.nodes), self.per_node)
        for hosts in places.values():
            for node, count in hosts:
                free[node] -= count
        left = [name for name, size in sizes.items() if size and name not in places]
        left.sort(key=lambda name: -sizes[name] if packs else sizes[name])
        for name in left:
            places[name] = _take_nodes(free, sizes[name], packs=packs)
        return places


def _take_nodes(free: dict[int, int], size: int, *, packs: bool) -> Hosts:
    """Take room for one job."""
    taken: dict[int, int] = {}
    while size:
        fitting = [node for node, room in free.items() if room >= size]
        if packs and fitting:
            node = min(fitting, key=lambda n: free[n])
        else:
            node = max(free, key=lambda n: free[n])
        count = min(free[node], size)
        taken[node] = taken.get(node, 0) + count
        free[node] -= count
        size -= count
    return tuple(sorted(taken.items()))
