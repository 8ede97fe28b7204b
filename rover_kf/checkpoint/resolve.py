# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which step all ranks restore, and each from where; pure. The coordinator asks it once a round.

A state is told by its step and by the round that made it: after a rollback the same step comes
again, and ranks must not mix the two.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from rover_kf import errors
from rover_kf.api.messages import Holding, ResolveReply, ResolveRequest

Key = tuple[int, int]
"""Step, round."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stored:
    """The newest good checkpoint on storage."""

    step: int
    path: str
    world_size: int
    replicated: bool


def resolve(
    requests: Sequence[ResolveRequest], stored: Stored | None
) -> Mapping[int, ResolveReply]:
    """Choose the common step.

    Memory goes before storage unless storage is newer. A replicated state needs one holder, a
    sharded one a holder for every rank.

    Args:
        requests: one of each rank of the round.
        stored: None if the storage holds nothing good.

    Returns:
        A reply for each rank.

    Raises:
        CheckpointError: there is state, but of another world size than this one can restore.
    """
    world_size = len(requests)
    holdings = [holding for request in requests for holding in request.holdings]
    key = max(_complete(holdings, world_size), default=None)
    if stored is not None and (key is None or stored.step > key[0]):
        if not stored.replicated and stored.world_size != world_size:
            raise errors.CheckpointError(_wrong_world(stored.world_size, world_size))
        reply = ResolveReply(stored.step, "storage", path=stored.path)
        return {request.rank: reply for request in requests}
    if key is None:
        if holdings:
            raise errors.CheckpointError(_wrong_world(holdings[0].world_size, world_size))
        return {request.rank: ResolveReply(None, "none") for request in requests}
    chosen = [holding for holding in holdings if (holding.step, holding.round) == key]
    return {request.rank: _source(request, chosen) for request in requests}


def _complete(holdings: Sequence[Holding], world_size: int) -> set[Key]:
    ranks: dict[Key, set[int]] = {}
    whole: set[Key] = set()
    for holding in holdings:
        key = (holding.step, holding.round)
        if holding.replicated:
            whole.add(key)
        elif holding.world_size == world_size:
            ranks.setdefault(key, set()).add(holding.rank)
    return whole | {key for key, held in ranks.items() if len(held) == world_size}


def _source(request: ResolveRequest, chosen: Sequence[Holding]) -> ResolveReply:
    for holding in request.holdings:
        if holding in chosen and (holding.replicated or holding.rank == request.rank):
            return ResolveReply(holding.step, "memory", holding)
    holders = [h for h in chosen if h.replicated or h.rank == request.rank]
    # Spread the load of many newcomers over those who hold it.
    holding = sorted(holders, key=lambda h: h.rank)[request.rank % len(holders)]
    return ResolveReply(holding.step, "peer", holding)


def _wrong_world(saved: int, now: int) -> str:
    return (
        f"the sharded state was saved by a world of {saved} and this one has {now}; start it with "
        f"{saved} ranks, or save replicated state (Checkpointer(replicated=True))"
    )
