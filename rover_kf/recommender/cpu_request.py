# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Cores of the trainer container, and processes of a replica."""

from __future__ import annotations

from rover_kf.api.decisions import Quantity
from rover_kf.recommender import similar_runs
from rover_kf.recommender.size_evidence import Sources, counted, single

DEFAULT, LEAST = 1.0, 0.25
MARGIN = 1.15
PER_LOADER = 0.25
"""Cores that a loader's worker is given at least."""
STARVED = 0.1
"""Share of a step that waits for data beyond which more cores are worth their price."""


def cpu(sources: Sources) -> Quantity:
    """Cores of the trainer container."""
    used = similar_runs.samples(sources.succeeded(), lambda run: run.peak.get("cpu"))
    if used:
        target = round(max(LEAST, MARGIN * similar_runs.quantile(used, 0.9)), 2)
        low, high = similar_runs.interval(used, target)
        why = f"nine in ten of {len(used)} runs alike used at most that, less 15 %"
        return counted("cpu", target, (low, high), used, why)
    if sources.own_trial() is not None:
        return _tried(sources)
    if sources.profile is not None and sources.profile.cores:
        cores = sources.profile.cores
        target = round(max(LEAST, cores * MARGIN), 2)
        why = f"a short run of the command kept {cores:.2f} cores busy"
        return single("cpu", target, (0.75 * target, 1.5 * target), "profile", why)
    stated = sources.facts.requested.get("cpu")
    if stated:
        why = "the manifest asks for it; use was not measured"
        return single("cpu", stated, (0.5 * stated, 1.5 * stated), "manifest", why)
    why = "nothing is known of the job: state a request or make a dry run"
    return single("cpu", DEFAULT, (0.5, 4.0), "default", why)


def processes(sources: Sources) -> Quantity:
    """Training processes of a replica: one for each accelerator, else what the manifest says."""
    stated = float(sources.facts.signature.processes_per_node)
    accelerators = float(sources.facts.signature.accelerators)
    if accelerators and accelerators != stated:
        why = f"one for each of {accelerators:g} accelerators; the manifest has {stated:g}"
        low, high = min(stated, accelerators), max(stated, accelerators)
        return single("processes", accelerators, (low, high), "formula", why)
    why = "one for each accelerator" if accelerators else "as the manifest says (nprocPerNode)"
    return single("processes", stated, (stated, stated), "manifest", why)


def _tried(sources: Sources) -> Quantity:
    trial = sources.own_trial()
    profile = sources.profile
    if trial is None or profile is None:
        raise AssertionError
    ranks = sources.facts.signature.processes_per_node
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
    return single("cpu", target, (0.75 * target, high), "profile", why)
