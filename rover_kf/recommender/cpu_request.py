# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Cores of the trainer container, and processes of a replica."""

from __future__ import annotations

from rover_kf.api.decisions import Quantity
from rover_kf.recommender import similar_runs
from rover_kf.recommender.size_evidence import SizeEvidence, from_samples, from_single

DEFAULT, LEAST = 1.0, 0.25
MARGIN = 1.15
PER_LOADER = 0.25
"""Cores that a loader's worker is given at least."""
STARVED = 0.1
"""Share of a step that waits for data beyond which more cores are worth their price."""


def recommend_cpu(evidence: SizeEvidence) -> Quantity:
    """Cores of the trainer container."""
    used = similar_runs.weighted_samples(
        evidence.successful_runs(), lambda run: run.peak.get("cpu")
    )
    if used:
        target = round(max(LEAST, MARGIN * similar_runs.quantile(used, 0.9)), 2)
        low, high = similar_runs.interval(used, target)
        why = f"nine in ten of {len(used)} runs alike used at most that, less 15 %"
        return from_samples("cpu", target, (low, high), used, why)
    if evidence.full_batch_trial() is not None:
        return _from_dry_run(evidence)
    if evidence.profile is not None and evidence.profile.cores:
        cores = evidence.profile.cores
        target = round(max(LEAST, cores * MARGIN), 2)
        why = f"a short run of the command kept {cores:.2f} cores busy"
        return from_single("cpu", target, (0.75 * target, 1.5 * target), "profile", why)
    stated = evidence.job.requested.get("cpu")
    if stated:
        why = "the manifest asks for it; use was not measured"
        return from_single("cpu", stated, (0.5 * stated, 1.5 * stated), "manifest", why)
    why = "nothing is known of the job: state a request or make a dry run"
    return from_single("cpu", DEFAULT, (0.5, 4.0), "default", why)


def recommend_processes(evidence: SizeEvidence) -> Quantity:
    """Training processes of a replica: one for each accelerator, else what the manifest says."""
    stated = float(evidence.job.signature.processes_per_node)
    accelerators = float(evidence.job.signature.accelerators)
    if accelerators and accelerators != stated:
        why = f"one for each of {accelerators:g} accelerators; the manifest has {stated:g}"
        low, high = min(stated, accelerators), max(stated, accelerators)
        return from_single("processes", accelerators, (low, high), "formula", why)
    why = "one for each accelerator" if accelerators else "as the manifest says (nprocPerNode)"
    return from_single("processes", stated, (stated, stated), "manifest", why)


def _from_dry_run(evidence: SizeEvidence) -> Quantity:
    trial = evidence.full_batch_trial()
    profile = evidence.profile
    if trial is None or profile is None:
        raise AssertionError
    ranks = evidence.job.signature.processes_per_node
    waits = trial.wait_seconds / trial.step_seconds if trial.step_seconds else 0.0
    floor = LEAST + PER_LOADER * profile.loader_workers
    each = max(trial.cores * MARGIN, floor)
    target = round(ranks * each, 2)
    why = (
        f"{ranks} x {trial.cores:.2f} cores that a dry run kept busy with "
        f"{profile.loader_workers} loader workers, and 15 %"
    )
    high = 1.5 * target
    if waits > STARVED:
        high = 2 * target
        why += f"; {waits:.0%} of a step waited for data: more loader workers, each with a core"
    return from_single("cpu", target, (0.75 * target, high), "profile", why)
