# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What of a rendezvous must outlive its coordinator, and a rendezvous that goes on from it; pure.

Recalling only adds: whatever the new one has learnt meanwhile stays, and to recall the same twice,
or an older memory after a newer one, changes nothing.
"""

from __future__ import annotations

import dataclasses

from rover_kf.api.coordinator_state import RendezvousMemory
from rover_kf.elastic.effects import Effect
from rover_kf.elastic.rendezvous import Rendezvous


def remember(rendezvous: Rendezvous) -> RendezvousMemory:
    """The memory as of now."""
    world, steward = rendezvous.world, rendezvous.steward
    closed = world.closed
    return RendezvousMemory(
        number=world.number,
        expected=world.expected,
        scaled=rendezvous.scaled,
        round=world.round if world.active else None,
        spent=tuple(sorted(steward.budget.spent)),
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
    spent, error = len(steward.budget.spent), steward.recurrence.last
    rest = (steward.failures, world.progress.ever, error, world.closed is None)
    return (world.number, world.active, world.expected, rendezvous.scaled, spent, *rest)


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
    world.number = max(world.number, memory.number)
    steward.budget = dataclasses.replace(
        steward.budget, spent=steward.budget.spent | set(memory.spent)
    )
    steward.failures = max(steward.failures, memory.failures)
    world.progress.ever = world.progress.ever or memory.stepped
    steward.recurrence.last = steward.recurrence.last or memory.error
    if memory.scaled and not rendezvous.scaled:
        rendezvous.expect(memory.expected)
    if memory.closed and world.closed is None:
        world.close(memory.exit_code, memory.verdict)
    elif runs and memory.round is not None and world.round is None:
        world.adopt(memory.round, now)
    return rendezvous.tick(now)
