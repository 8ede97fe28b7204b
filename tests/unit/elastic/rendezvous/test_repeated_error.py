# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Recurrence: the same error at the same place again is permanent, anything else may pass."""

from __future__ import annotations

from rover_kf.elastic.rendezvous.progress import Progress
from rover_kf.elastic.rendezvous.repeated_error import BEGINNING, Recurrence


def at_step(step: int | None) -> Progress:
    return Progress(ever=True, round=1, step=step, began=0.0)


def test_same_place_twice():
    """Twice at one step is permanent, also where the ranks are a step apart."""
    recurrence = Recurrence()
    assert not recurrence.again("a", at_step(57), 1000.0)
    assert recurrence.again("a", at_step(58), 2000.0)


def test_progress_in_between():
    """The same error further on, another error, or one that never proves anything: try again."""
    recurrence = Recurrence()
    assert not recurrence.again("a", at_step(57), 0.0)
    assert not recurrence.again("a", at_step(157), 0.0)
    assert not recurrence.again("b", at_step(157), 0.0)
    assert not recurrence.again("", at_step(157), 0.0)
    assert recurrence.again("b", at_step(157), 0.0)


def test_before_the_first_step():
    """Twice before any step of the round is permanent; once before and once after is not."""
    recurrence = Recurrence()
    assert not recurrence.again("a", at_step(None), 5.0)
    assert not recurrence.again("a", at_step(3), 5.0)
    assert not recurrence.again("a", at_step(None), 5.0)
    assert recurrence.again("a", at_step(None), 5.0)


def test_script_that_reports_nothing():
    """How far it got is unknown: only its first seconds count as the same place."""
    recurrence = Recurrence()
    silent = Progress(began=100.0)
    assert not recurrence.again("a", silent, 101.0)
    assert not recurrence.again("a", silent, 101.0 + BEGINNING)
    assert recurrence.again("a", silent, 102.0)
