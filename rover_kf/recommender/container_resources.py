# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Memory and cores of the trainer container: what runs alike needed, else what a dry run shows.

    container = launcher + files + processes * (own(batch) + gradients sent)

with own(batch) affine in the batch. Gradients are copied once more into the buckets that a world of
more than one process sends.
"""

from __future__ import annotations

from rover_kf.api.decisions import Quantity
from rover_kf.api.records import RunRecord
from rover_kf.recommender import size_evidence
from rover_kf.recommender.profile import Trial
from rover_kf.recommender.size_evidence import (
    GIB,
    MIB,
    SizeEvidence,
    fit_line,
    quantify,
    round_up_mib,
)

DEFAULT_MEMORY = 2 * GIB
PROFILE_MARGIN = 1.25
DRY_MARGIN, DRY_LOWER, DRY_UPPER = 1.27, 0.92, 1.45
LAUNCHER = 130 * MIB
"""Own memory of the process that starts the ranks; it has torch loaded."""
GROUP = 24 * MIB
"""Of a process in a group of several: connections, buffers, watchdog."""
DEFAULT_CORES, MIN_CORES = 1.0, 0.25
CORES_MARGIN = 1.15
PER_LOADER = 0.25
"""Cores that a loader's worker is given at least."""
STARVED = 0.1
"""Share of a step that waits for data beyond which more cores are worth their price."""
OUT_OF_MEMORY = ("out_of_memory", "OOMKilled", "killed for memory")


def recommend_memory(evidence: SizeEvidence) -> Quantity:
    """Bytes of the trainer container."""
    peaks = size_evidence.weighted_samples(evidence.runs, needed_memory)
    raised = size_evidence.weighted_samples(evidence.runs, lambda run: run.memory_raised or None)
    if raised and not peaks:
        target = max(sample.value for sample in raised)
        why = f"a run alike was killed with less and went on with {target / MIB:.0f} MiB"
        return quantify(
            "memory", target, (target / 2, target * 1.25), "history", why, samples=raised
        )
    if peaks:
        worst = max(sample.value for sample in peaks)
        target = round_up_mib(worst + max(0.2 * worst, 2 * size_evidence.spread(peaks)))
        target = max([target, *(sample.value for sample in raised)])
        why = f"the worst of {len(peaks)} runs alike needed {worst / MIB:.0f} MiB, and a margin"
        return quantify("memory", target, (worst, target * 1.25), "history", why, samples=peaks)
    if (found := predict_memory(evidence)) is not None:
        return found
    if evidence.profile is not None and evidence.profile.peak_memory:
        peak = evidence.profile.peak_memory
        why = f"a short run of the command took {peak / MIB:.0f} MiB at its peak, and a margin"
        target = round_up_mib(peak * PROFILE_MARGIN)
        return quantify("memory", target, (peak, target * 1.6), "profile", why)
    return _from_manifest(evidence)


def predict_memory(evidence: SizeEvidence, batch: int | None = None) -> Quantity | None:
    """From the dry run's parts; None if it computed nothing for real.

    The batch is that of one process, by default the script's own.
    """
    real = [trial for trial in evidence.trials if not trial.faked]
    if not real:
        return None
    ranks = evidence.job.signature.processes_per_node
    constant, slope = fit_line([(trial.batch, trial.footprint.anonymous) for trial in real])
    own = constant + slope * (real[-1].batch if batch is None else batch)
    files = max(trial.footprint.files for trial in real)
    sent = 0.0
    if evidence.world > 1:
        sent = GROUP + (evidence.state.gradient_bytes if evidence.state is not None else 0)
    total = LAUNCHER + files + ranks * (own + sent)
    why = (
        f"{ranks} x {(own + sent) / MIB:.0f} MiB that a dry run's process held with what it sends, "
        f"{(files + LAUNCHER) / MIB:.0f} MiB for libraries and the launcher, and "
        f"{DRY_MARGIN - 1:.0%}"
    )
    target = round_up_mib(DRY_MARGIN * total)
    bounds = (DRY_LOWER * total, DRY_UPPER * total)
    return quantify("memory", target, bounds, "profile", why, samples=float(len(real)))


def _from_manifest(evidence: SizeEvidence) -> Quantity:
    stated = evidence.job.requested.get("memory")
    if stated:
        asked = [
            run for run in evidence.successful_runs() if _requested_memory(run.record) == stated
        ]
        count = sum(run.weight for run in asked)
        why = "the manifest asks for it; use was not measured"
        if asked:
            why = f"the manifest asks for it and {len(asked)} runs alike succeeded with it"
        bounds = (0.5 * stated, 1.5 * stated)
        return quantify("memory", stated, bounds, "manifest", why, samples=count)
    why = "nothing is known of the job: state a request or make a dry run"
    bounds = (DEFAULT_MEMORY / 4, DEFAULT_MEMORY * 4)
    return quantify("memory", DEFAULT_MEMORY, bounds, "default", why)


def needed_memory(run: RunRecord) -> float | None:
    """What a run needed: its peak, and more than it had if that was not enough."""
    peak = run.peak.get("memory")
    asked = run.memory_raised or _requested_memory(run)
    if asked and any(word in run.verdict for word in OUT_OF_MEMORY):
        return max(peak or 0.0, 1.2 * asked)
    return peak


def _requested_memory(run: RunRecord) -> float | None:
    return run.requested.get("memory")


def recommend_cpu(evidence: SizeEvidence) -> Quantity:
    """Cores of the trainer container."""
    used = size_evidence.weighted_samples(
        evidence.successful_runs(), lambda run: run.peak.get("cpu")
    )
    if used:
        target = round(max(MIN_CORES, CORES_MARGIN * size_evidence.quantile(used, 0.9)), 2)
        bounds = size_evidence.interval(used, target)
        why = f"nine in ten of {len(used)} runs alike used at most that, less 15 %"
        return quantify("cpu", target, bounds, "history", why, samples=used)
    trial, profile = evidence.full_batch_trial(), evidence.profile
    if trial is not None and profile is not None:
        ranks = evidence.job.signature.processes_per_node
        return _from_dry_run(trial, profile.loader_workers, ranks)
    if profile is not None and profile.cores:
        cores = profile.cores
        target = round(max(MIN_CORES, cores * CORES_MARGIN), 2)
        why = f"a short run of the command kept {cores:.2f} cores busy"
        return quantify("cpu", target, (0.75 * target, 1.5 * target), "profile", why)
    stated = evidence.job.requested.get("cpu")
    if stated:
        why = "the manifest asks for it; use was not measured"
        return quantify("cpu", stated, (0.5 * stated, 1.5 * stated), "manifest", why)
    why = "nothing is known of the job: state a request or make a dry run"
    return quantify("cpu", DEFAULT_CORES, (0.5, 4.0), "default", why)


def recommend_processes(evidence: SizeEvidence) -> Quantity:
    """Training processes of a replica: one for each accelerator, else what the manifest says."""
    stated = float(evidence.job.signature.processes_per_node)
    accelerators = float(evidence.job.signature.accelerators)
    if accelerators and accelerators != stated:
        why = f"one for each of {accelerators:g} accelerators; the manifest has {stated:g}"
        low, high = min(stated, accelerators), max(stated, accelerators)
        return quantify("processes", accelerators, (low, high), "formula", why)
    why = "one for each accelerator" if accelerators else "as the manifest says (nprocPerNode)"
    return quantify("processes", stated, (stated, stated), "manifest", why)


def _from_dry_run(trial: Trial, loader_workers: int, ranks: int) -> Quantity:
    waits = trial.wait_seconds / trial.step_seconds if trial.step_seconds else 0.0
    each = max(trial.cores * CORES_MARGIN, MIN_CORES + PER_LOADER * loader_workers)
    target = round(ranks * each, 2)
    why = (
        f"{ranks} x {trial.cores:.2f} cores that a dry run kept busy with "
        f"{loader_workers} loader workers, and 15 %"
    )
    high = 1.5 * target
    if waits > STARVED:
        high = 2 * target
        why += f"; {waits:.0%} of a step waited for data: more loader workers, each with a core"
    return quantify("cpu", target, (0.75 * target, high), "profile", why)
