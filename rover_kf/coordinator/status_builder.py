# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How a job stands, put together from the coordinator's parts for who asks."""

from __future__ import annotations

from rover_kf.api.status import CoordinatorStatus
from rover_kf.coordinator.commit.commit_service import CommitService
from rover_kf.coordinator.telemetry import Telemetry
from rover_kf.elastic.rendezvous.rendezvous import Rendezvous

_MAX_AWAITED = 64
"""Of a status; the next one tells of others."""


def build_status(
    rendezvous: Rendezvous,
    telemetry: Telemetry,
    commits: CommitService,
    *,
    job: str,
    started_at: float,
    now: float,
) -> CoordinatorStatus:
    """Everything that a controller wants to know, but for events and hangs.

    Args:
        rendezvous: who trains.
        telemetry: how.
        commits: what is safe.
        job: its name.
        started_at: when its coordinator began; Unix seconds.
        now: Unix seconds.
    """
    world = rendezvous.world
    current = world.round
    return CoordinatorStatus(
        job=job,
        phase=job_phase(rendezvous, telemetry),
        round=world.round_number,
        nodes=len(current.members) if current else 0,
        expected_nodes=world.expected,
        world_size=current.world_size if current else 0,
        step=telemetry.step,
        total_steps=telemetry.total_steps,
        sealed_step=commits.sealed_step,
        durable_step=commits.durable_step,
        samples_per_second=telemetry.windows.samples_per_second,
        restarts=rendezvous.failure_policy.failures,
        windows=telemetry.windows.closed,
        window_closes=telemetry.windows.closes_at,
        goodput=telemetry.goodput(now),
        account_from=telemetry.account_from,
        events=(),
        started_at=started_at,
        now=now,
        restart_seconds=telemetry.restart_seconds,
        verdict=world.closed.verdict if world.closed else "",
        saves=commits.sealed_steps.saves,
        save_seconds=commits.sealed_steps.seconds,
        snapshot_bytes=commits.sealed_steps.snapshot_bytes,
        replicated=commits.sealed_steps.replicated,
        awaited_ranks=world.missing_ranks[:_MAX_AWAITED],
        memory_peak=telemetry.usage.memory,
        memory_trend=telemetry.usage.series.trend(),
        cpu_peak=telemetry.usage.cores,
        storage_rate=commits.storage_rate,
    )


def job_phase(rendezvous: Rendezvous, telemetry: Telemetry) -> str:
    """The job's, of ``CoordinatorStatus``; the first world has nothing to recover from."""
    world = rendezvous.world
    if world.closed:
        return "failed" if world.closed.exit_code else "finished"
    if world.drain_at:
        return "draining"
    first = world.round_number <= world.limits.first_round or not world.progress.any_reported
    if world.active and (telemetry.stepping or first):
        return "training"
    return "recovering" if telemetry.step else "waiting"
