# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The soak tells a kept promise from a broken one."""

from __future__ import annotations

import pytest
from soaking import recovery, schedule
from soaking.recovery import Struck
from soaking.trace import Line, Round

from rover_kf.api import names
from rover_kf.api.jobs import Event

EVERY = 20


def _round(number: int, resumed: int, last: int, *sources: str) -> Round:
    found = Round(number, len(sources))
    for rank, source in enumerate(sources):
        at = float(number * 100)
        found.restored[rank] = Line("restored", resumed, rank, len(sources), number, 1, at, source)
        found.newest[rank] = Line("stepped", last, rank, len(sources), number, 1, at + 50, "-")
    return found


def _struck(kind: str, number: int, step: int) -> Struck:
    return Struck(kind, "digits-worker-1", number * 100 + 50.0, step, number, 1.5)


ROUNDS = {
    1: _round(1, 0, 59, "none", "none"),
    2: _round(2, 40, 110, "memory", "peer"),
    4: _round(4, 100, 300, "memory", "memory"),
}
STRUCK = [
    _struck(schedule.KILL_TRAINER, 1, 59),
    _struck(schedule.STOP_TRAINER, 2, 90),
    _struck(schedule.DELETE_POD, 2, 110),
]


def _events() -> list[Event]:
    formed = [
        Event(names.EVENT_WORLD_FORMED, f"round {number}: 2 processes in 2 pods", at=number * 100)
        for number in ROUNDS
    ]
    why = [
        Event(names.EVENT_PROCESS_FAILED, "rank 1 was killed", at=150.5),
        Event(names.EVENT_MEMBER_LEFT, "it left", at=250.5),
    ]
    return [*formed, *why]


def test_rounds_belong_to_the_fault_before_them():
    """Steps lost are those finished before; a fault without a round after it cost nothing."""
    first, second, third = recovery.recoveries(STRUCK, ROUNDS)
    assert (first.rounds, first.steps_lost, first.sources) == ((2,), 19, {"memory", "peer"})
    assert (second.rounds, second.steps_lost, second.sources) == ((), 0, frozenset())
    assert (third.rounds, third.steps_lost, third.sources) == ((4,), 10, {"memory"})
    assert recovery.recoveries([], ROUNDS) == ()


def test_kept_promises_are_no_failures():
    """Nothing is wrong with these."""
    found = recovery.recoveries(STRUCK, ROUNDS)
    assert recovery.lost_too_much(found, EVERY) == []
    assert recovery.wrong_sources(found) == []
    assert recovery.ranks_apart(ROUNDS.values()) == []
    assert recovery.unexplained(found, _events()) == []


def test_too_many_steps_lost():
    """One more than the interval is too many; after a newcomer a single one is."""
    rounds = {1: _round(1, 0, 61, "none"), 2: _round(2, 40, 90, "memory")}
    crash = recovery.recoveries([_struck(schedule.KILL_TRAINER, 1, 61)], rounds)
    assert len(recovery.lost_too_much(crash, EVERY)) == 1
    assert recovery.lost_too_much(crash, EVERY + 1) == []
    joined = recovery.recoveries([_struck(schedule.SCALE_UP, 1, 61)], rounds)
    assert len(recovery.lost_too_much(joined, EVERY + 1)) == 1


@pytest.mark.parametrize(
    ("kind", "source", "broken"),
    [
        (schedule.KILL_TRAINER, "storage", 1),
        (schedule.DELETE_POD, "storage", 0),
        (schedule.DELETE_POD, "none", 1),
        (schedule.KILL_SIDECAR, "peer", 0),
    ],
)
def test_where_states_may_come_from(kind, source, broken):
    """Storage only where a pod's memory is gone, and never from nowhere."""
    rounds = {1: _round(1, 0, 50, "none"), 2: _round(2, 40, 90, source)}
    found = recovery.recoveries([_struck(kind, 1, 50)], rounds)
    assert len(recovery.wrong_sources(found)) == broken


def test_ranks_apart_are_seen():
    """All ranks of a round go on from one step."""
    apart = _round(2, 40, 90, "memory", "memory")
    apart.restored[1] = Line("restored", 20, 1, 2, 2, 1, 200.0, "memory")
    assert recovery.ranks_apart([apart]) == ["round 2 resumed at [20, 40]"]


def test_what_no_event_explains():
    """A round without its event, and a fault without a cause, are told."""
    found = recovery.recoveries(STRUCK, ROUNDS)
    unformed = [e for e in _events() if not e.message.startswith("round 4")]
    assert [text.rpartition(" round ")[2] for text in recovery.unexplained(found, unformed)] == [
        "4 was formed"
    ]
    late = [e for e in _events() if e.reason != names.EVENT_MEMBER_LEFT]
    assert len(recovery.unexplained(found, late)) == 1


def test_a_killed_sidecar_is_told_though_training_went_on():
    """No round began, and yet somebody has to say that it died."""
    found = recovery.recoveries([_struck(schedule.KILL_SIDECAR, 1, 30)], {1: ROUNDS[1]})
    assert len(recovery.unexplained(found, [])) == 1
    told = Event(names.EVENT_PROCESS_FAILED, "the rover-kf sidecar ended with 137", at=151.0)
    assert recovery.unexplained(found, [told]) == []
