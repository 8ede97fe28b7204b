# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What of a rendezvous must outlive its coordinator, and a rendezvous that goes on from it; pure.

Recalling only adds: whatever the new one has learnt meanwhile stays, and to recall the same twice,
or an older memory after a newer one, changes nothing.
"""

from __future__ import annotations

from rover_kf.api import names
from rover_kf.api.coordinator_state import RendezvousMemory
from rover_kf.elastic.rendezvous.effects import Effect
from rover_kf.elastic.rendezvous.rendezvous import Rendezvous


def remember(rendezvous: Rendezvous) -> RendezvousMemory:
    """The memory as of now."""
    world, steward = rendezvous.world, rendezvous.steward
    closed, spent = world.closed, steward.restarts.budget.spent
    return RendezvousMemory(
        number=world.number,
        expected=world.expected,
        scaled=rendezvous.scaled,
        round=world.round if world.active else None,
        spent=tuple(sorted(spent)),
        kinds=tuple(spent[number] for number in sorted(spent)),
        row=steward.restarts.row,
        failures=steward.failures,
        stepped=world.progress.ever,
        error=steward.recurrence.last,
        closed=closed is not None,
        exit_code=closed.exit_code if closed else 0,
        verdict=closed.verdict if closed else "",
    )


def mark(rendezvous: Rendezvous) -> tuple[object, ...]:
    """Differs whenever the memory does; costs nothing, however many members there are."""
    world, steward = rendezvous.world, rendezvous.steward
    costs = (steward.restarts.budget, steward.restarts.row)
    rest = (steward.failures, world.progress.ever, steward.recurrence.last, world.closed)
    return (world.number, world.active, world.expected, rendezvous.scaled, *costs, *rest)


def recall(
    rendezvous: Rendezvous, memory: RendezvousMemory, now: float, *, runs: bool
) -> tuple[Effect, ...]:
    """Go on from a memory.

    Args:
        rendezvous: that has just begun.
        memory: of an earlier one.
        now: monotonic seconds.
        runs: whether the memory's round still runs as far as is known: it was written before any
            member was told of another one.
    """
    world, steward = rendezvous.world, rendezvous.steward
    world.now, world.number = now, max(world.number, memory.number)
    restarts, kinds = steward.restarts, dict(zip(memory.spent, memory.kinds, strict=False))
    spent = {number: kinds.get(number, "") for number in memory.spent}
    restarts.budget = restarts.budget.recall(spent)
    steward.failures = max(steward.failures, memory.failures)
    world.progress.ever = world.progress.ever or memory.stepped
    steward.recurrence.last = steward.recurrence.last or memory.error
    if memory.scaled and not rendezvous.scaled:
        rendezvous.expect(memory.expected)
    restarts.recall(memory.row, held=memory.round is None and not world.active)
    if not runs and not memory.closed:
        _tell_of_loss(rendezvous, memory)
    if memory.closed and world.closed is None:
        world.close(memory.exit_code, memory.verdict)
    elif runs and memory.round is not None and world.round is None:
        world.adopt(memory.round, now)
    return rendezvous.tick(now)


def _tell_of_loss(rendezvous: Rendezvous, memory: RendezvousMemory) -> None:
    # Copies come from other pods: this coordinator's pod has taken the place of another one,
    # which has told of its own end to nobody, or to a coordinator that ended with it.
    world = rendezvous.world
    if memory.number <= rendezvous.inherited:
        return
    rendezvous.inherited = memory.number
    first = memory.round.members[0] if memory.round else None
    if memory.round is None or first is None or first.node_rank:
        why = (
            f"the first pod was replaced, and the coordinator with it, after round {memory.number}"
        )
    else:
        name = memory.round.name(first)
        why = f"{name} was lost: another pod took its place, and the coordinator's, in round "
        why += str(memory.number)
    world.tell(names.EVENT_MEMBER_LOST, why, warning=True)
    world.ended_by = world.ended_by or why
