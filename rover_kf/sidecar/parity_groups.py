# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which pods share a parity, and of which slots each pod holds one; pure.

A group has at least as many pods as the policy says, so that a parity is never larger than the
memory that was counted for it: pods that are left over join a group. Only a world that is smaller
has a smaller group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rover_kf.api.checkpoints import Holding, Lane

Lanes = Mapping[str, tuple[Lane, ...]]
"""Of each pod those that it holds a parity of."""


def groups(nodes: Mapping[str, str], size: int) -> tuple[tuple[str, ...], ...]:
    """Share the pods out.

    Pods of one node, which are lost together, go to as many groups as there are.

    Args:
        nodes: of each pod, in rank order; empty: not known.
        size: fewest pods of a group.
    """
    count = max(len(nodes) // size, 1)
    by_node: dict[str, list[str]] = {}
    for pod, node in nodes.items():
        by_node.setdefault(node or f"/{pod}", []).append(pod)
    dealt = [pod for pods in sorted(by_node.values(), key=len, reverse=True) for pod in pods]
    order = list(nodes)
    return tuple(tuple(sorted(dealt[first::count], key=order.index)) for first in range(count))


def lanes(holdings: Sequence[Holding], size: int) -> Lanes:
    """What each pod shall hold parities of: of its group's first ranks, of the second ones, ...

    Args:
        holdings: of one step.
        size: fewest pods of a group.

    Returns:
        Nothing if a rank is missing or there is one pod only.
    """
    if not holdings or len({h.rank for h in holdings}) < holdings[0].world_size:
        return {}
    ranks: dict[str, list[Holding]] = {}
    for holding in sorted(holdings, key=lambda h: h.rank):
        ranks.setdefault(holding.pod, []).append(holding)
    found: dict[str, list[Lane]] = {}
    for group in groups({pod: held[0].node for pod, held in ranks.items()}, size):
        for number in range(max(len(ranks[pod]) for pod in group)):
            members = [ranks[pod][number] for pod in group if number < len(ranks[pod])]
            if len(members) == 1:  # It has more ranks than all others: another one joins twice.
                members += [ranks[pod][0] for pod in group if pod != members[0].pod][:1]
            for member in members:
                if len(members) > 1:
                    lane = Lane(number, tuple(members))
                    found.setdefault(member.pod, []).append(lane)
    return {pod: tuple(held) for pod, held in found.items()}
