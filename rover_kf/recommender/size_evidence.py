# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Everything that is known before a run, and how a number is made of one source of it; pure.

Sources in order: the history of runs alike, a dry run or profile, the manifest, a default.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from rover_kf.api.decisions import Quantity
from rover_kf.api.records import RunRecord
from rover_kf.recommender import similar_runs
from rover_kf.recommender.job_signature import JobSpec
from rover_kf.recommender.profile import ModelState, Profile, Trial
from rover_kf.recommender.similar_runs import SimilarRun

MIB, GIB = 1 << 20, 1 << 30
SLOTS = 2
"""A rank's own snapshots in the arena at one time."""
UNITS = {
    "replicas": "replicas",
    "servers": "replicas",
    "server_cpu": "cores",
    "server_memory": "bytes",
    "processes": "processes",
    "cpu": "cores",
    "memory": "bytes",
    "accelerator_memory": "bytes",
    "batch": "samples",
    "arena": "bytes",
    "replica": "bytes",
    "storage_bandwidth": "bytes/s",
    "storage_rate": "bytes/s",
    "checkpoint_every": "steps",
}


@dataclasses.dataclass(frozen=True, slots=True)
class SizeEvidence:
    """Everything that is known before the run."""

    job: JobSpec
    runs: tuple[SimilarRun, ...]
    profile: Profile | None = None
    other_jobs: tuple[SimilarRun, ...] = ()
    """Runs of other scripts that may be looked at: they tell of the network, not of the job."""

    def successful_runs(self) -> tuple[SimilarRun, ...]:
        """Runs alike that ended well."""
        return tuple(item for item in self.runs if item.record.outcome == "succeeded")

    def layout(self) -> SimilarRun | None:
        """The most alike run of which it is known whether its state was sharded."""
        return next((item for item in self.runs if item.record.replicated is not None), None)

    def slots(self) -> int:
        """Snapshots in the arena for each rank, the copy of another pod's among them."""
        layout = self.layout()
        return SLOTS + (0 if layout is None or layout.record.replicated else 1)

    def snapshots(self) -> tuple[similar_runs.WeightedSample, ...]:
        """Bytes of a rank's snapshot, as runs alike had it: at least at this job's size.

        Of sharded state fewer ranks hold more each.
        """
        return similar_runs.weighted_samples(
            self.runs, lambda run: run.snapshot_bytes * max(1.0, shard_count(run) / self.world)
        )

    @property
    def world(self) -> int:
        """Processes that the manifest asks for."""
        pods = self.job.masters + int(self.job.requested["replicas"])
        return max(1, pods * self.job.signature.processes_per_node)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Of the dry run, by batch."""
        return self.profile.trials if self.profile is not None else ()

    @property
    def state(self) -> ModelState | None:
        """Of the dry run."""
        return self.profile.state if self.profile is not None else None

    def full_batch_trial(self) -> Trial | None:
        """The dry run's largest batch that was really computed: the script's own."""
        real = [trial for trial in self.trials if not trial.faked]
        return real[-1] if real else None


def shard_count(run: RunRecord) -> int:
    """Among how many ranks the state was shared out where a run's snapshots were largest."""
    if run.replicated is not False:
        return 1
    asked = round(run.requested.get("replicas", 1.0)) * run.signature.processes_per_node
    return max(1, min((window.world_size for window in run.windows), default=asked))


def from_samples(
    name: str,
    target: float,
    bounds: tuple[float, float],
    samples: Sequence[similar_runs.WeightedSample],
    why: str,
    *,
    basis: str = "history",
) -> Quantity:
    """A number with runs behind it."""
    count = similar_runs.effective_count(samples)
    return Quantity(name, target, *bounds, UNITS[name], basis, count, why)


def from_single(
    name: str,
    target: float,
    bounds: tuple[float, float],
    basis: str,
    why: str,
    *,
    samples: float | None = None,
) -> Quantity:
    """A number with one source that is no run: a profile counts as one sample, a guess as none."""
    count = (1.0 if basis == "profile" else 0.0) if samples is None else samples
    return Quantity(name, target, *bounds, UNITS[name], basis, count, why)


def round_up_mib(count: float) -> float:
    """Bytes, rounded up to MiB."""
    return float(math.ceil(round(count / MIB, 6)) * MIB)


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Constant and slope through the first and the last point; neither is negative.

    Args:
        points: by x, ascending; at least one.
    """
    (low, first), (high, last) = points[0], points[-1]
    slope = max(0.0, (last - first) / (high - low)) if high > low else 0.0
    constant = last - slope * high
    # A line below zero at the start would promise more than was seen: then it starts at nothing.
    return (constant, slope) if constant >= 0 else (0.0, last / high if high else 0.0)
