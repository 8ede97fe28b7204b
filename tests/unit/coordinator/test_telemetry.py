# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the coordinator concludes from steps: when a change of the world is over."""

from __future__ import annotations

import dataclasses

import pytest

from rover_kf.api.membership import Member, Round
from rover_kf.api.samples import Goodput, StepReport, StepSample
from rover_kf.coordinator.telemetry import Telemetry

MEMBERS = tuple(Member(f"job-worker-{rank}", f"i{rank}", rank, 1) for rank in range(2))


def world(number):
    return Round(number, MEMBERS, 2, "127.0.0.1", 1)


def stepped(rank, number, step, at):
    return StepReport(rank, 2, number, (StepSample(step, ended_at=at, seconds=0.1),))


def test_a_report_under_way_when_a_round_ends_is_no_recovery():
    """Only steps of the next round end a change; a late one of the old round counts as done."""
    told = Telemetry(10.0, started_at=0.0)
    told.on_round_started(world(1), 1.0)
    for rank in range(2):
        told.report(stepped(rank, 1, 5, 10.0), 10.0)
    told.on_round_ended(11.0, planned=False)
    for rank in range(2):
        assert told.report(stepped(rank, 1, 7, 10.9), 11.1) is None
    assert not told.stepping
    assert told.step == 7
    assert told.restart_seconds == 0.0
    told.on_round_started(world(2), 12.0)
    assert told.report(stepped(0, 2, 6, 13.0), 13.1) is None
    assert told.report(stepped(1, 2, 6, 13.0), 13.1) == 2.0
    assert told.restart_seconds == 2.0
    assert told.stepping


@pytest.mark.parametrize("off", [0.0, 3600.0, -3600.0])
def test_a_clock_that_is_wrong_changes_nothing(off):
    """A node's clock is an hour ahead or behind: steps ended when they were told of."""
    told = Telemetry(10.0, started_at=0.0)
    took = []
    for number, began in ((1, 5000.0), (2, 5010.0)):
        told.on_round_started(world(number), began)
        for rank in range(2):
            at = began + 2.0
            found = stepped(rank, number, number, at + off)
            report = dataclasses.replace(found, sent_at=at + off + 0.5)
            took.append(told.report(report.adjust_clock(at + 0.5), at + 0.5))
        told.on_round_ended(began + 5.0, planned=False)
    assert took == [None, None, None, pytest.approx(7.0, abs=1.0)]


def train(told, number, first, last, *, at):
    """Both ranks make steps of a second each, from ``at`` on."""
    for step in range(first, last + 1):
        at += 1.0
        for rank in range(2):
            sample = StepSample(step, ended_at=at, seconds=1.0)
            told.report(StepReport(rank, 2, number, (sample,)), at + 0.1)


def test_the_account_of_a_failure():
    """The step that broke off, the coming together, the restore, and the steps made again."""
    told = Telemetry(10.0, started_at=0.0)
    told.on_round_started(world(1), 10.0)
    train(told, 1, 1, 5, at=12.0)
    told.on_round_ended(17.5, planned=False)
    told.pods_missing(17.6, missing=False)
    told.on_round_started(world(2), 19.0)
    train(told, 2, 4, 7, at=20.0)
    found = told.goodput(24.5)
    assert found == Goodput(
        waiting=12.0, productive=7.5, recovery=1.5, rendezvous=1.5, redone=2.0, scaling=0.0
    )
    assert found.total == 24.5


def test_the_account_of_a_lost_pod():
    """Until it is replaced, those who could start if only it came wait for pods."""
    told = Telemetry(10.0, started_at=0.0)
    told.on_round_started(world(1), 0.0)
    train(told, 1, 1, 5, at=0.0)
    told.on_round_ended(5.0, planned=False)
    told.pods_missing(5.2, missing=True)
    told.pods_missing(9.0, missing=True)
    told.pods_missing(9.2, missing=False)
    told.on_round_started(world(2), 9.3)
    train(told, 2, 6, 6, at=9.5)
    found = told.goodput(10.5)
    assert (found.waiting, found.productive) == (pytest.approx(4.0), 6.0)
    assert (found.rendezvous, found.recovery) == (pytest.approx(0.3), pytest.approx(0.2))


def test_the_account_of_a_planned_change():
    """From the last step of the old world to the first of the new one it is scaling."""
    told = Telemetry(10.0, started_at=0.0)
    told.on_round_started(world(1), 0.0)
    train(told, 1, 1, 5, at=0.0)
    told.on_round_ended(5.25, planned=True)
    told.on_round_started(world(2), 5.5)
    train(told, 2, 6, 8, at=5.75)
    found = told.goodput(8.75)
    assert found == Goodput(productive=8.0, scaling=0.75)


def test_the_account_outlives_the_coordinators_process():
    """Its round still runs: nothing is lost, nothing counts twice. Another runs: what lies between
    was a recovery."""
    told = Telemetry(10.0, started_at=0.0)
    told.on_round_started(world(1), 0.0)
    train(told, 1, 1, 5, at=0.0)
    memory = told.export_state()
    again = Telemetry(10.0, started_at=7.0)
    again.import_state(memory)
    again.on_round_started(world(1), 8.0)
    train(again, 1, 8, 8, at=7.5)
    assert again.goodput(9.0) == Goodput(productive=9.0)
    other = Telemetry(10.0, started_at=7.0)
    other.import_state(memory)
    other.on_round_started(world(2), 8.0)
    train(other, 2, 5, 6, at=8.5)
    assert other.goodput(10.5) == Goodput(productive=6.0, recovery=3.5, redone=1.0)
