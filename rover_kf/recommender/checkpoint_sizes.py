# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Memory for snapshots, how often to save, and what storage has to take."""

from __future__ import annotations

import math

from rover_kf.api.decisions import Quantity
from rover_kf.api.records import RunRecord
from rover_kf.recommender import size_evidence
from rover_kf.recommender.size_evidence import (
    GIB,
    MIB,
    SLOTS,
    SimilarRun,
    SizeEvidence,
    quantify,
    round_up_mib,
    shard_count,
)

DEFAULT = GIB
MARGIN = 1.1


def recommend_arena(evidence: SizeEvidence) -> Quantity:
    """Bytes of all snapshots of a pod in memory."""
    ranks, slots = evidence.job.signature.processes_per_node, evidence.slots()
    sizes = evidence.snapshots()
    measured = evidence.profile.snapshot_bytes if evidence.profile is not None else None
    if sizes or measured:
        largest = max([sample.value for sample in sizes] or [float(measured or 0)])
        target = round_up_mib(largest * slots * ranks * MARGIN)
        size = f"{largest / MIB:.1f} MiB"
        why = f"{slots} slots of {size} for each of {ranks} processes, and 10 %"
        low = largest * slots * ranks
        if sizes:
            bounds = (low, target * 1.25)
            return quantify("arena", target, bounds, "history", why, samples=sizes)
        return quantify("arena", target, (low, target * 1.5), "profile", why)
    if evidence.job.arena_bytes:
        stated = evidence.job.arena_bytes
        return quantify("arena", stated, (stated, stated), "manifest", "the annotation says so")
    given = evidence.job.requested.get("memory")
    if given:
        half = round_up_mib(given / 2)
        why = "half of the trainer's memory, until a run has shown the size of its snapshots"
        return quantify("arena", half, (half / 8, half * 2), "formula", why)
    why = "nothing is known of the state's size; the first checkpoint will tell"
    return quantify("arena", DEFAULT, (DEFAULT / 8, DEFAULT * 4), "default", why)


def recommend_replica_arena(evidence: SizeEvidence, arena: Quantity) -> Quantity:
    """Bytes of the recommended arena in which a pod keeps another pod's state."""
    layout, slots = evidence.layout(), evidence.slots()
    if layout is None:
        why = (
            "not known yet: nothing where all ranks hold the same (DDP); a third slot for each "
            "process, beside the arena's two, where state is sharded (FSDP, tensor parallel)"
        )
        most = arena.target / SLOTS
        return quantify("replica", 0.0, (0.0, most), "default", why)
    if layout.record.replicated:
        why = "a run alike held all of its state in every rank: nothing is copied to other pods"
        return quantify("replica", 0.0, (0.0, 0.0), "history", why, samples=layout.weight)
    target, low, high = (n / slots for n in (arena.target, arena.lower, arena.upper))
    why = (
        f"one of the arena's {slots} slots for each process holds a rank of another pod: a run "
        "alike had sharded state, which is lost with its pod otherwise"
    )
    return quantify("replica", target, (low, high), "history", why, samples=layout.weight)


PRIOR_FAILURE_SECONDS = 86400.0
"""One failure a day is assumed beside what was seen."""
MAX_STEPS = 10_000
BANDWIDTH_MARGIN = 1.25


def recommend_interval(evidence: SizeEvidence) -> Quantity:
    """Steps between two saves, by Young and Daly: sqrt(2 * cost of a save * time between failures).

    The cost is what a save held training up, what overlaps with it left out. The time between
    failures is seen over all runs alike, with one failure a day added as a prior.
    """
    costs = size_evidence.weighted_samples(evidence.runs, lambda run: run.save_seconds)
    steps = size_evidence.weighted_samples(evidence.runs, step_seconds)
    if costs and steps:
        cost, step = size_evidence.quantile(costs, 0.5), size_evidence.quantile(steps, 0.5)
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
    return quantify("checkpoint_every", every, (max(1.0, every / 5), every * 5), basis, why)


def required_bandwidth(evidence: SizeEvidence) -> Quantity | None:
    """Bytes a second that storage has to take; None while the state's size is not known."""
    sizes = size_evidence.weighted_samples(
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
    target = BANDWIDTH_MARGIN * need
    return quantify("storage_bandwidth", target, bounds, "formula", why, samples=sizes or 1.0)


def measured_bandwidth(evidence: SizeEvidence) -> Quantity | None:
    """Bytes a second that storage took of one pod; None while no run has shown it.

    Every run on that storage counts, of whatever script, by its age; without one, runs alike.
    """
    storage, everyone = evidence.job.storage, (*evidence.runs, *evidence.other_jobs)
    if not storage:
        return None
    same = [item.record for item in everyone if item.record.storage == storage]
    newest = max((record.updated_at for record in same), default=0.0)
    aged = [SimilarRun(run, size_evidence.freshness(newest - run.updated_at)) for run in same]
    found, where = size_evidence.weighted_samples(aged, _storage_rate), "this storage"
    if not found:
        found, where = size_evidence.weighted_samples(evidence.runs, _storage_rate), "runs alike"
    if not found:
        return None
    target = size_evidence.quantile(found, 0.5)
    why = (
        f"measured of {where} in {len(found)} run(s), of the slowest pod; how long a pod may take "
        "to end goes by it"
    )
    bounds = size_evidence.interval(found, target)
    return quantify("storage_rate", target, bounds, "history", why, samples=found)


def _storage_rate(run: RunRecord) -> float:
    return run.storage_rate


def step_seconds(run: RunRecord) -> float | None:
    """Median step of the run's newest window; None if it never trained steadily."""
    return run.windows[-1].step_seconds if run.windows else None


def _daly(
    evidence: SizeEvidence,
    cost: float,
    step: float,
    samples: tuple[size_evidence.WeightedSample, ...],
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
    return quantify("checkpoint_every", target, bounds, "formula", why, samples=samples or 1.0)
