# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Recurrence: the same error at the same place again is permanent, anything else may pass."""

from __future__ import annotations

from rover_kf.elastic.rendezvous.restart_budget import BEGINNING, RepeatedErrorDetector
from rover_kf.elastic.rendezvous.world import StepProgress


def at_step(step: int | None) -> StepProgress:
    return StepProgress(any_reported=True, round=1, step=step, began=0.0)


def test_same_place_twice():
    """Twice at one step is permanent, also where the ranks are a step apart."""
    recurrence = RepeatedErrorDetector()
    assert not recurrence.is_repeat("a", at_step(57), 1000.0)
    assert recurrence.is_repeat("a", at_step(58), 2000.0)


def test_progress_in_between():
    """The same error further on, another error, or one that never proves anything: try again."""
    recurrence = RepeatedErrorDetector()
    assert not recurrence.is_repeat("a", at_step(57), 0.0)
    assert not recurrence.is_repeat("a", at_step(157), 0.0)
    assert not recurrence.is_repeat("b", at_step(157), 0.0)
    assert not recurrence.is_repeat("", at_step(157), 0.0)
    assert recurrence.is_repeat("b", at_step(157), 0.0)


def test_before_the_first_step():
    """Twice before any step of the round is permanent; once before and once after is not."""
    recurrence = RepeatedErrorDetector()
    assert not recurrence.is_repeat("a", at_step(None), 5.0)
    assert not recurrence.is_repeat("a", at_step(3), 5.0)
    assert not recurrence.is_repeat("a", at_step(None), 5.0)
    assert recurrence.is_repeat("a", at_step(None), 5.0)


def test_script_that_reports_nothing():
    """How far it got is unknown: only its first seconds count as the same place."""
    recurrence = RepeatedErrorDetector()
    silent = StepProgress(began=100.0)
    assert not recurrence.is_repeat("a", silent, 101.0)
    assert not recurrence.is_repeat("a", silent, 101.0 + BEGINNING)
    assert recurrence.is_repeat("a", silent, 102.0)
