# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which step all ranks restore, and each from where; pure. The coordinator asks it once a round.

States are compared as they were saved (rover_kf.api.states), never by their steps alone: after a
rollback the same step comes again, and ranks must not mix the two.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from rover_kf import errors
from rover_kf.api.checkpoints import RestoreStepReply, RestoreStepRequest, SlotInfo
from rover_kf.api.states import State
from rover_kf.checkpoint import rank_ranges

_MAX_OTHERS = 2
"""Holders that a rank may turn to where the first one does not give; of a large world there are
thousands."""


@dataclasses.dataclass(frozen=True, slots=True)
class StoredStep:
    """The newest good checkpoint on storage."""

    origin: State
    """As it was saved."""
    path: str
    fits: bool
    """Whether the asking world can restore it."""
    world_size: int


def resolve(
    requests: Sequence[RestoreStepRequest],
    stored: StoredStep | None,
    absent: Sequence[SlotInfo] = (),
) -> Mapping[int, RestoreStepReply]:
    """Choose the common step.

    Memory goes before storage unless storage is newer. A replicated state needs one holder, any
    other a holder for every rank of the world that saved it.

    Args:
        requests: one of each rank of the round.
        stored: None if the storage holds nothing good.
        absent: slots of pods that take no part any more but still serve them.

    Returns:
        A reply for each rank.

    Raises:
        WrongWorldSize: there is state, but of another world size than this one can restore.
        CheckpointError: ranks' parts of the only state are lost.
    """
    world_size = len(requests)
    holdings = _collect_holdings(requests, absent)
    chosen = _newest_complete(holdings, world_size)
    if stored is not None and (not chosen or stored.origin > chosen[0].state):
        if not stored.fits:
            raise _wrong_world(stored.world_size, world_size)
        reply = RestoreStepReply(stored.origin, "storage", path=stored.path)
        return {request.rank: reply for request in requests}
    if not chosen:
        if holdings:
            raise _incomplete(holdings, world_size)
        return {request.rank: RestoreStepReply(None, "none") for request in requests}
    replies = {request.rank: _choose_source(request, chosen) for request in requests}
    rebuilding = any(holding.replica for reply in replies.values() for holding in reply.slots)
    return {
        rank: dataclasses.replace(reply, replicas_in_use=rebuilding)
        for rank, reply in replies.items()
    }


def newest_in_memory(
    requests: Sequence[RestoreStepRequest], absent: Sequence[SlotInfo] = ()
) -> State | None:
    """The newest state that memory alone can restore; None: there is none.

    Args:
        requests: one of each rank of the round.
        absent: as for ``resolve``.
    """
    chosen = _newest_complete(_collect_holdings(requests, absent), len(requests))
    return chosen[0].state if chosen else None


def _collect_holdings(
    requests: Sequence[RestoreStepRequest], absent: Sequence[SlotInfo]
) -> Sequence[SlotInfo]:
    return [*(holding for request in requests for holding in request.slots), *absent]


def _newest_complete(holdings: Sequence[SlotInfo], world_size: int) -> Sequence[SlotInfo]:
    """All holdings of the newest state that is whole; none if none is.

    While a world of another size is being restored both worlds' parts of one step are around: they
    count apart, and are whole apart.
    """
    states: dict[tuple[State, int], list[SlotInfo]] = {}
    for holding in holdings:
        saved = 0 if holding.replicated else holding.world_size
        if holding.replicated or holding.pieces or saved == world_size:
            states.setdefault((holding.state, saved), []).append(holding)
    whole = [
        (state, saved == world_size, saved == 0, found)
        for (state, saved), found in states.items()
        if len({holding.rank for holding in found}) >= saved
    ]
    # What one pod has all of needs no other one.
    return max(whole, key=lambda item: item[:3])[3] if whole else ()


def _choose_source(request: RestoreStepRequest, chosen: Sequence[SlotInfo]) -> RestoreStepReply:
    if chosen[0].pieces and chosen[0].world_size != request.world_size:
        return _all_ranks(request, chosen)
    for holding in request.slots:
        if holding in chosen and (holding.replicated or holding.rank == request.rank):
            return RestoreStepReply(holding.state, "memory", (holding,))
    holders = [h for h in chosen if h.replicated or h.rank == request.rank]
    # Spread the load of many newcomers over those who hold it.
    holders.sort(key=lambda h: h.rank)
    at = request.rank % len(holders)
    holding, *others = (*holders[at:], *holders[:at])
    return RestoreStepReply(
        holding.state, "peer", (holding,), alternatives=tuple(others[:_MAX_OTHERS])
    )


def _all_ranks(request: RestoreStepRequest, chosen: Sequence[SlotInfo]) -> RestoreStepReply:
    """One holding of every rank of the world that saved it, the pod's own where it has one.

    No copy where the rank's own slot is there: slots that grow may need the copies' room.
    """
    own = set(request.slots)
    by_rank = {h.rank: h for h in sorted(chosen, key=lambda h: (not h.replica, h in own))}
    first = request.rank % chosen[0].world_size
    ordered = (by_rank[first], *(h for rank, h in sorted(by_rank.items()) if rank != first))
    source = "memory" if own.issuperset(ordered) else "peer"
    return RestoreStepReply(chosen[0].state, source, ordered)


def _incomplete(holdings: Sequence[SlotInfo], world_size: int) -> errors.CheckpointError:
    newest = max(holdings, key=lambda holding: holding.state)
    if not newest.pieces and newest.world_size != world_size:
        return _wrong_world(newest.world_size, world_size)
    key = (newest.state, newest.world_size)
    held = {h.rank for h in holdings if (h.state, h.world_size) == key}
    lacking = sorted(set(range(newest.world_size)) - held)
    return errors.CheckpointError(
        f"{newest.state} lacks ranks {rank_ranges.format_ranks(lacking)} of "
        f"{newest.world_size}: they "
        "were lost with their pods and those that kept replicas, and no checkpoint is on storage. "
        "Start the job anew, with checkpoint.path set so that it can go back to storage"
    )


def _wrong_world(saved: int, now: int) -> errors.WrongWorldSize:
    return errors.WrongWorldSize(
        f"the state was saved by a world of {saved}, each rank its own, and this one has {now}; "
        f"start it with {saved} ranks, or save DTensors or what every rank holds alike"
    )
