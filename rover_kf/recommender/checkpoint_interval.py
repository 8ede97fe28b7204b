# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How often to save, and what storage has to take."""

from __future__ import annotations

import math

from rover_kf.api.decisions import Quantity
from rover_kf.api.records import RunRecord
from rover_kf.recommender import similar_runs
from rover_kf.recommender.similar_runs import SimilarRun
from rover_kf.recommender.size_evidence import (
    MIB,
    SizeEvidence,
    from_samples,
    from_single,
    shard_count,
)

PRIOR_FAILURE_SECONDS = 86400.0
"""One failure a day is assumed beside what was seen."""
MAX_STEPS = 10_000
BANDWIDTH_MARGIN = 1.25


def recommend_interval(evidence: SizeEvidence) -> Quantity:
    """Steps between two saves, by Young and Daly: sqrt(2 * cost of a save * time between failures).

    The cost is what a save held training up, what overlaps with it left out. The time between
    failures is seen over all runs alike, with one failure a day added as a prior.
    """
    costs = similar_runs.weighted_samples(evidence.runs, lambda run: run.save_seconds)
    steps = similar_runs.weighted_samples(evidence.runs, step_seconds)
    if costs and steps:
        cost, step = similar_runs.quantile(costs, 0.5), similar_runs.quantile(steps, 0.5)
        return _daly(evidence, cost, step, costs)
    state, trial = evidence.state, evidence.full_batch_trial()
    if state is not None and state.copy_seconds and trial is not None and trial.step_seconds:
        return _daly(evidence, state.copy_seconds, trial.step_seconds, ())
    facts = evidence.job
    every = float(facts.checkpoint_every)
    basis = "manifest" if facts.states_every else "default"
    why = "the annotation says so; the cost of a save was not measured yet"
    if not facts.states_every:
        why = "the default, until a run has shown what a save costs"
    return from_single("checkpoint_every", every, (max(1.0, every / 5), every * 5), basis, why)


def required_bandwidth(evidence: SizeEvidence) -> Quantity | None:
    """Bytes a second that storage has to take; None while the state's size is not known."""
    sizes = similar_runs.weighted_samples(
        evidence.runs, lambda run: run.snapshot_bytes * shard_count(run)
    )
    state = evidence.state
    if not sizes and state is None:
        return None
    whole = max([sample.value for sample in sizes] or [float(state.snapshot_bytes if state else 0)])
    pace = evidence.job.persist_seconds
    need = whole / pace
    why = (
        f"{whole / MIB:.0f} MiB of state every {pace:g} s (checkpoint.persist-seconds), and "
        "a quarter more so that a slow one does not delay the next"
    )
    bounds = (need, 2 * BANDWIDTH_MARGIN * need)
    if sizes:
        target = BANDWIDTH_MARGIN * need
        return from_samples("storage_bandwidth", target, bounds, sizes, why, basis="formula")
    return from_single(
        "storage_bandwidth", BANDWIDTH_MARGIN * need, bounds, "formula", why, samples=1.0
    )


def measured_bandwidth(evidence: SizeEvidence) -> Quantity | None:
    """Bytes a second that storage took of one pod; None while no run has shown it.

    Every run on that storage counts, of whatever script, by its age; without one, runs alike.
    """
    storage, everyone = evidence.job.storage, (*evidence.runs, *evidence.other_jobs)
    if not storage:
        return None
    same = [item.record for item in everyone if item.record.storage == storage]
    newest = max((record.updated_at for record in same), default=0.0)
    found = similar_runs.weighted_samples(
        [SimilarRun(record, similar_runs.freshness(newest - record.updated_at)) for record in same],
        lambda run: run.storage_rate,
    )
    where = "this storage"
    if not found:
        found, where = (
            similar_runs.weighted_samples(evidence.runs, lambda run: run.storage_rate),
            "runs alike",
        )
    if not found:
        return None
    target = similar_runs.quantile(found, 0.5)
    why = (
        f"measured of {where} in {len(found)} run(s), of the slowest pod; how long a pod may take "
        "to end goes by it"
    )
    return from_samples("storage_rate", target, similar_runs.interval(found, target), found, why)


def step_seconds(run: RunRecord) -> float | None:
    """Median step of the run's newest window; None if it never trained steadily."""
    return run.windows[-1].step_seconds if run.windows else None


def _daly(
    evidence: SizeEvidence,
    cost: float,
    step: float,
    samples: tuple[similar_runs.WeightedSample, ...],
) -> Quantity:
    seen = sum(item.record.updated_at - item.record.started_at for item in evidence.runs)
    failures = sum(item.record.restarts for item in evidence.runs)
    between = (seen + PRIOR_FAILURE_SECONDS) / (failures + 1)
    seconds = math.sqrt(2 * cost * between)
    target = float(min(max(1, round(seconds / step)), MAX_STEPS))
    blocks = "a save blocks" if samples else "a copy of the state, in a dry run, takes"
    why = (
        f"{blocks} {cost * 1000:.1f} ms and a failure comes every {between / 3600:.1f} h: "
        f"least is lost with a save every {seconds:.1f} s, at {step:.3f} s a step"
    )
    bounds = (max(1.0, target / 2), target * 2)
    if samples:
        return from_samples("checkpoint_every", target, bounds, samples, why, basis="formula")
    return from_single("checkpoint_every", target, bounds, "formula", why, samples=1.0)
