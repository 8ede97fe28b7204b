# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a job is said to be at."""

from __future__ import annotations

from rover_kf.api.policy import FailurePolicy
from rover_kf.api.samples import StepReport, StepSample
from rover_kf.coordinator.status_builder import job_phase
from rover_kf.coordinator.telemetry import Telemetry
from rover_kf.elastic.rendezvous.rendezvous_limits import RendezvousLimits
from tests.support.simulated.launchers import SimulatedJob


def test_the_first_world_recovers_from_nothing():
    """It trains from the moment it stands, also while some ranks have told a step and others have
    not; only what comes after a failure is a recovery, until all have stepped again."""
    failures = FailurePolicy(max_backoff=0.0)
    limits = RendezvousLimits(nodes=2, min_nodes=2, max_nodes=2, failures=failures)
    job = SimulatedJob(limits, 2)
    told = Telemetry(10.0, started_at=0.0)

    def form() -> None:
        for launcher in job.launchers:
            launcher.start()
            job.send(launcher)
        told.on_round_started(job.rendezvous.world.round, job.now)

    def step(rank: int, number: int) -> None:
        at = job.now
        round_ = job.rendezvous.world.round_number
        told.report(StepReport(rank, 2, round_, (StepSample(number, at, 0.1),)), at)
        job.rendezvous.observe(round_, number, seconds=0.1, ended_at=at, now=at)

    assert job_phase(job.rendezvous, told) == "waiting"
    form()
    assert job_phase(job.rendezvous, told) == "training"
    step(0, 1)
    assert job_phase(job.rendezvous, told) == "training"
    step(1, 1)
    job.rendezvous.world.end_round("rank 0 was killed", planned=False)
    told.on_round_ended(job.now, planned=False)
    assert job_phase(job.rendezvous, told) == "recovering"
    form()
    assert job.rendezvous.world.round_number == 2
    assert job_phase(job.rendezvous, told) == "recovering"
    step(0, 2)
    assert job_phase(job.rendezvous, told) == "recovering"
    step(1, 2)
    assert job_phase(job.rendezvous, told) == "training"
