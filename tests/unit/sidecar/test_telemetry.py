# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the coordinator concludes from steps: when a change of the world is over."""

from __future__ import annotations

from rover_kf.api.membership import Member, Round
from rover_kf.api.samples import StepReport, StepSample
from rover_kf.sidecar.telemetry import Telemetry

MEMBERS = tuple(Member(f"job-worker-{rank}", f"i{rank}", rank, 1) for rank in range(2))


def world(number):
    return Round(number, MEMBERS, 2, "127.0.0.1", 1)


def stepped(rank, number, step, at):
    return StepReport(rank, 2, number, (StepSample(step, ended_at=at, seconds=0.1),))


def test_a_report_under_way_when_a_round_ends_is_no_recovery():
    """Only steps of the next round end a change; a late one of the old round counts as done."""
    told = Telemetry(10.0, started_at=0.0)
    told.formed(world(1))
    for rank in range(2):
        told.report(stepped(rank, 1, 5, 10.0), 10.0)
    told.broken(11.0, planned=False)
    for rank in range(2):
        assert told.report(stepped(rank, 1, 7, 10.9), 11.1) is None
    assert not told.stepping
    assert told.step == 7
    assert told.restart_seconds == 0.0
    told.formed(world(2))
    assert told.report(stepped(0, 2, 6, 13.0), 13.1) is None
    assert told.report(stepped(1, 2, 6, 13.0), 13.1) == 2.0
    assert told.restart_seconds == 2.0
    assert told.stepping
