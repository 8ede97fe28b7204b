# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The state of a rendezvous that outlives its coordinator, and its restore.

A restore only adds: to restore a state twice, or an older one after a newer one, changes nothing.
"""

from __future__ import annotations

from rover_kf.api import names
from rover_kf.api.coordinator_state import RendezvousState
from rover_kf.elastic.rendezvous.effects import Effect
from rover_kf.elastic.rendezvous.rendezvous import Rendezvous


def export(rendezvous: Rendezvous) -> RendezvousState:
    """Return the state as of now."""
    world, steward = rendezvous.world, rendezvous.failure_policy
    closed, spent = world.closed, steward.restart_limiter.budget.spent
    return RendezvousState(
        number=world.number,
        expected=world.expected,
        scaled=rendezvous.scaled,
        round=world.round if world.active else None,
        spent_rounds=tuple(sorted(spent)),
        spent_kinds=tuple(spent[number] for number in sorted(spent)),
        streak=steward.restart_limiter.streak,
        failures=steward.failures,
        any_step_reported=world.progress.any_reported,
        error=steward.repeated_error.last,
        closed=closed is not None,
        exit_code=closed.exit_code if closed else 0,
        verdict=closed.verdict if closed else "",
    )


def fingerprint(rendezvous: Rendezvous) -> tuple[object, ...]:
    """Differs whenever the memory does; costs nothing, however many members there are."""
    world, steward = rendezvous.world, rendezvous.failure_policy
    costs = (steward.restart_limiter.budget, steward.restart_limiter.streak)
    errors = (steward.failures, world.progress.any_reported, steward.repeated_error.last)
    round_state = (world.number, world.active, world.expected, world.closed, rendezvous.scaled)
    return (*round_state, *costs, *errors)


def restore(
    rendezvous: Rendezvous, state: RendezvousState, now: float, *, is_running: bool
) -> tuple[Effect, ...]:
    """Resume an earlier rendezvous's state.

    ``is_running``: its round still runs as far as is known, since no member had another one.
    """
    world, steward = rendezvous.world, rendezvous.failure_policy
    world.now, world.number = now, max(world.number, state.number)
    restarts = steward.restart_limiter
    kinds = dict(zip(state.spent_rounds, state.spent_kinds, strict=False))
    spent = {number: kinds.get(number, "") for number in state.spent_rounds}
    restarts.budget = restarts.budget.merge_spent(spent)
    steward.failures = max(steward.failures, state.failures)
    world.progress.any_reported = world.progress.any_reported or state.any_step_reported
    steward.repeated_error.last = steward.repeated_error.last or state.error
    if state.scaled and not rendezvous.scaled:
        rendezvous.set_expected(state.expected)
    restarts.restore(state.streak, waiting=state.round is None and not world.active)
    if not is_running and not state.closed:
        _report_loss(rendezvous, state)
    if state.closed and world.closed is None:
        world.close(state.exit_code, state.verdict)
    elif is_running and state.round is not None and world.round is None:
        world.adopt(state.round, now)
    return rendezvous.tick(now)


def _report_loss(rendezvous: Rendezvous, state: RendezvousState) -> None:
    # Copies come from other pods: this coordinator's pod has taken the place of another one,
    # which has told of its own end to nobody, or to a coordinator that ended with it.
    world = rendezvous.world
    if state.number <= rendezvous.inherited:
        return
    rendezvous.inherited = state.number
    first = state.round.members[0] if state.round else None
    if state.round is None or first is None or first.node_rank:
        why = f"the first pod was replaced, and the coordinator with it, after round {state.number}"
    else:
        name = state.round.member_label(first)
        why = f"{name} was lost: another pod took its place, and the coordinator's, in round "
        why += str(state.number)
    world.emit_event(names.EVENT_MEMBER_LOST, why, warning=True)
    world.end_reason = world.end_reason or why
