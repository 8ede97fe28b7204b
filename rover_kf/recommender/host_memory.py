# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Bytes of the trainer container: what runs alike needed, else what a dry run's parts sum up to.

    container = launcher + files + processes * (own(batch) + gradients sent)

with own(batch) affine in the batch. Gradients are copied once more into the buckets that a world of
more than one process sends.
"""

from __future__ import annotations

from rover_kf.api.decisions import Quantity
from rover_kf.api.records import RunRecord
from rover_kf.recommender import similar_runs
from rover_kf.recommender.size_evidence import (
    GIB,
    MIB,
    SizeEvidence,
    fit_line,
    from_samples,
    from_single,
    round_up_mib,
)

DEFAULT = 2 * GIB
PROFILE_MARGIN = 1.25
DRY_MARGIN, DRY_LOWER, DRY_UPPER = 1.27, 0.92, 1.45
LAUNCHER = 130 * MIB
"""Own memory of the process that starts the ranks; it has torch loaded."""
GROUP = 24 * MIB
"""Of a process in a group of several: connections, buffers, watchdog."""
OUT_OF_MEMORY = ("out_of_memory", "OOMKilled", "killed for memory")


def recommend_memory(evidence: SizeEvidence) -> Quantity:
    """Bytes of the trainer container."""
    peaks = similar_runs.weighted_samples(evidence.runs, needed_memory)
    raised = similar_runs.weighted_samples(evidence.runs, lambda run: run.memory_raised or None)
    if raised and not peaks:
        target = max(sample.value for sample in raised)
        why = f"a run alike was killed with less and went on with {target / MIB:.0f} MiB"
        return from_samples("memory", target, (target / 2, target * 1.25), raised, why)
    if peaks:
        worst = max(sample.value for sample in peaks)
        target = round_up_mib(worst + max(0.2 * worst, 2 * similar_runs.spread(peaks)))
        target = max([target, *(sample.value for sample in raised)])
        why = f"the worst of {len(peaks)} runs alike needed {worst / MIB:.0f} MiB, and a margin"
        return from_samples("memory", target, (worst, target * 1.25), peaks, why)
    if (found := predict_memory(evidence)) is not None:
        return found
    if evidence.profile is not None and evidence.profile.peak_memory:
        peak = evidence.profile.peak_memory
        why = f"a short run of the command took {peak / MIB:.0f} MiB at its peak, and a margin"
        target = round_up_mib(peak * PROFILE_MARGIN)
        return from_single("memory", target, (peak, target * 1.6), "profile", why)
    return _from_manifest(evidence)


def predict_memory(evidence: SizeEvidence, batch: int | None = None) -> Quantity | None:
    """From the dry run's parts; None if it computed nothing for real.

    Args:
        evidence: what is known.
        batch: samples of one process; the script's own by default.
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
    return from_single("memory", target, bounds, "profile", why, samples=float(len(real)))


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
        return from_single("memory", stated, bounds, "manifest", why, samples=count)
    why = "nothing is known of the job: state a request or make a dry run"
    return from_single("memory", DEFAULT, (DEFAULT / 4, DEFAULT * 4), "default", why)


def needed_memory(run: RunRecord) -> float | None:
    """What a run needed: its peak, and more than it had if that was not enough."""
    peak = run.peak.get("memory")
    asked = run.memory_raised or _requested_memory(run)
    if asked and any(word in run.verdict for word in OUT_OF_MEMORY):
        return max(peak or 0.0, 1.2 * asked)
    return peak


def _requested_memory(run: RunRecord) -> float | None:
    return run.requested.get("memory")
