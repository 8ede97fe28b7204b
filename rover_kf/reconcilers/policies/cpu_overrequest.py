# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Workers that ask for far more cores than they use: told once, with what would do; pure.

Nothing is lowered while the job runs. What is given back in place may be gone when an evaluation,
another epoch or a second loader needs it, and a job that is held back loses more than cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rover_kf.injection import quantities
from rover_kf.injection.adapters import PYTORCH, Replica
from rover_kf.reconcilers.plan import Observed, Plan, Tell
from rover_kf.reconcilers.policies import cpu_events
from rover_kf.scaling.policy import OFF

WINDOWS = 10
"""Of the world that trains now, from which on the most that was used is believed."""
MARGIN = 1.15
"""Over the most that a pod has used."""
LEAST = 0.1
"""Cores that a trainer is left in any case."""
TIMES = 2.0
"""What is asked for over what would do, from which on it is told."""
LEAST_GAIN = 0.5
"""Cores of a pod that it has to be worth."""


def extend(made: Plan, seen: Observed, now: float) -> Plan:
    """The plan with that told, if it is so."""
    status = seen.status
    ended = seen.job.finished or seen.job.suspended or seen.job.deleting
    if status is None or ended or seen.policy.mode == OFF or not status.cpu_peak:
        return made
    world = (status.nodes, status.world_size)
    windows = [one for one in status.windows if (one.nodes, one.world_size) == world]
    worker = _worker(seen)
    if worker is None or status.phase != "training" or len(windows) < WINDOWS:
        return made
    asked, enough = _asked(PYTORCH.trainer(worker)), max(status.cpu_peak * MARGIN, LEAST)
    key = f"cpu-spare:{asked:g}"
    if asked < TIMES * enough or asked - enough < LEAST_GAIN or made.status.has_told(key):
        return made
    minutes = sum(one.ended_at - one.started_at for one in windows) / 60.0
    event = cpu_events.spare(worker, (asked, status.cpu_peak, enough), minutes, now)
    return made.then(Tell(event), status=made.status.with_told(key))


def _worker(seen: Observed) -> Replica | None:
    if seen.job.key.kind != PYTORCH.kind:
        return None
    found = (one for one in PYTORCH.replicas(seen.job.manifest) if one.kind == "worker")
    return next(found, None)


def _asked(trainer: Mapping[str, Any]) -> float:
    """Cores: of its request, else of its limit; 0 if it states neither."""
    given = trainer.get("resources") or {}
    stated = {**(given.get("limits") or {}), **(given.get("requests") or {})}
    return quantities.parse_cores(stated["cpu"]) if "cpu" in stated else 0.0
