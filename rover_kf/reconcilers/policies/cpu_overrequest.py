# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Workers that ask for far more cores than they use: told once, with what would do; pure.

Nothing is lowered while the job runs. What is given back in place may be gone when an evaluation,
another epoch or a second loader needs it, and a job that is held back loses more than cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rover_kf.api import names
from rover_kf.api.jobs import Event
from rover_kf.injection import quantities
from rover_kf.job_kinds.job_kind import Replica
from rover_kf.job_kinds.registry import kind_of_job
from rover_kf.reconcilers.plan import Observed, ReconcilePlan
from rover_kf.scaling.policy import OFF

WINDOWS = 10
"""Of the world that trains now, from which on the most that was used is believed."""
MARGIN = 1.15
"""Over the most that a pod has used."""
MIN_CORES = 0.1
"""Cores that a trainer is left in any case."""
MIN_RATIO = 2.0
"""What is asked for over what would do, from which on it is told."""
MIN_GAIN = 0.5
"""Cores of a pod that it has to be worth."""


def apply(plan: ReconcilePlan, observed: Observed, now: float) -> ReconcilePlan:
    """The plan with that told, if it is so."""
    status, off = observed.status, observed.job.inactive or observed.policy.mode == OFF
    if status is None or off or not status.cpu_peak:
        return plan
    world = (status.nodes, status.world_size)
    windows = [one for one in status.windows if (one.nodes, one.world_size) == world]
    worker = _worker_replica(observed)
    if worker is None or status.phase != "training" or len(windows) < WINDOWS:
        return plan
    asked = _requested_cores(kind_of_job(observed.job).trainer(worker))
    enough = max(status.cpu_peak * MARGIN, MIN_CORES)
    if asked < MIN_RATIO * enough or asked - enough < MIN_GAIN:
        return plan
    minutes = sum(one.ended_at - one.started_at for one in windows) / 60.0
    old, busy, new = (
        quantities.format_millicores(round(1000 * cores))
        for cores in (asked, status.cpu_peak, enough)
    )
    message = (
        f"{worker.key} replicas ask for {old} of CPU each, and none kept more than {busy} busy "
        f"in {minutes:.0f} min: {new} would do. What a job has is not lowered while it runs; "
        "set it in the manifest (`rover-kf recommend` reckons with it, too)"
    )
    event = Event(names.EVENT_CPU_OVER_REQUESTED, message, at=now)
    return plan.emit_once(f"cpu-spare:{asked:g}", event)


def _worker_replica(observed: Observed) -> Replica | None:
    job_kind = kind_of_job(observed.job)
    if not job_kind.elastic:
        return None
    found = (one for one in job_kind.replicas(observed.job.manifest) if one.kind == "worker")
    return next(found, None)


def _requested_cores(trainer: Mapping[str, Any]) -> float:
    """Cores: of its request, else of its limit; 0 if it states neither."""
    given = trainer.get("resources") or {}
    stated = {**(given.get("limits") or {}), **(given.get("requests") or {})}
    return quantities.parse_cores(stated["cpu"]) if "cpu" in stated else 0.0
