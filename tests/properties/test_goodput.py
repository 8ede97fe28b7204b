# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The goodput account under any sequence of what can happen to a job and to its coordinator."""

from __future__ import annotations

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from rover_kf.api import codec
from rover_kf.api.coordinator_state import TelemetryState
from rover_kf.api.membership import Member, Round
from rover_kf.api.samples import StepReport, StepSample
from rover_kf.coordinator.telemetry import Telemetry

RANKS = 2
MEMBERS = tuple(Member(f"job-worker-{rank}", f"i{rank}", rank, 1) for rank in range(RANKS))
SKEWS = (-30.0, 0.0, 0.1, 45.0)
"""Of the clock of rank 1's node."""

happenings = st.one_of(
    st.tuples(st.just("formed")),
    st.tuples(st.just("broken"), st.booleans()),
    st.tuples(st.just("missing"), st.booleans()),
    st.tuples(st.just("restart")),
    st.tuples(st.just("restart, nothing kept")),
    st.tuples(
        st.just("step"),
        st.integers(0, RANKS - 1),
        st.floats(0, 20),
        st.floats(0, 30),
        st.sampled_from(SKEWS),
    ),
    st.tuples(st.just("whole step"), st.floats(0, 20), st.floats(0, 3)),
)


class Coordinator:
    """Its telemetry, and what would be in its pod's volume."""

    def __init__(self) -> None:
        self.now = 1e9
        self.telemetry = Telemetry(5.0, self.now)
        self.began = self.now
        self.round, self.step = 0, 0

    def do(self, what: str, *given: float) -> None:
        if what == "formed":
            self.round += 1
            self.step = max(self.step - 3, 0)
            self.telemetry.on_round_started(Round(self.round, MEMBERS, RANKS, "host", 1), self.now)
        elif what == "broken":
            self.telemetry.on_round_ended(self.now, planned=bool(given[0]))
        elif what == "missing":
            self.telemetry.pods_missing(self.now, missing=bool(given[0]))
        elif what == "restart":
            text = codec.dumps(self.telemetry.export_state())
            self.telemetry = Telemetry(5.0, self.now + 1e-3)
            self.telemetry.import_state(codec.loads(TelemetryState, text))
        elif what == "restart, nothing kept":
            self.telemetry = Telemetry(5.0, self.now)
            self.began = self.now
        elif what == "step":
            self.report(int(given[0]), given[1], given[2], given[3])
        else:
            self.step += 1
            for rank in range(RANKS):
                self.report(rank, given[0], given[1], 0.0)

    def report(self, rank: int, seconds: float, saving: float, skew: float) -> None:
        sample = StepSample(max(self.step, 1), self.now + skew, seconds, save_seconds=saving)
        self.telemetry.report(StepReport(rank, RANKS, self.round, (sample,)), self.now)


@settings(max_examples=300, deadline=None)
@given(story=st.lists(st.tuples(st.floats(0, 50), happenings), max_size=40))
def test_every_second_is_in_one_bucket(story):
    """They sum to the account's age to the microsecond, none is negative, and what was once
    spent stays spent: only the seconds since the last entry may turn out to be something else."""
    coordinator = Coordinator()
    settled: dict[str, int] = {}
    for seconds, happening in story:
        coordinator.now += seconds
        coordinator.do(*happening)
        telemetry, now = coordinator.telemetry, coordinator.now
        if happening[0] == "restart, nothing kept":
            settled = {}
        spent = telemetry._account.spent
        assert all(spent.get(bucket, 0) >= amount for bucket, amount in settled.items())
        settled = spent
        for moment in (now, now + 7.25):
            found = telemetry.goodput(moment)
            parts = [round(part * 1e6) for part in dataclasses.astuple(found)]
            assert sum(parts) == round(moment * 1e6) - round(coordinator.began * 1e6)
            assert min(parts) >= 0
        assert round(telemetry.account_from * 1e6) == round(coordinator.began * 1e6)
