# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Everything that is known before a run, and how a number is made of one source of it; pure.

Sources in order: the history of runs alike, a dry run or profile, the manifest, a default.
A run alike has a weight:

    weight = exp(-d^2 / 2 h^2) * 2^(-age / 14 days)

with d = 0 for the same command and image, 0.5 for the same command, 1 for the same job name, and
2 for anything else of the namespace. Two weeks halve a run's say: code and data move on.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

from rover_kf.api.decisions import Quantity
from rover_kf.api.records import JobSignature, RunRecord
from rover_kf.dry_run.messages import ModelState
from rover_kf.recommender.job_signature import JobFacts
from rover_kf.recommender.profile import Profile, Trial

BANDWIDTH = 0.7
HALF_LIFE_SECONDS = 14 * 86400.0
LEAST_WEIGHT = 0.05
"""Below this a run says nothing: another job of the namespace (d = 2) weighs 0.017."""


@dataclasses.dataclass(frozen=True, slots=True)
class SimilarRun:
    """A run and its weight, in (0, 1]."""

    record: RunRecord
    weight: float


@dataclasses.dataclass(frozen=True, slots=True)
class WeightedSample:
    """A number of a run with the run's weight."""

    value: float
    weight: float


def find_similar(
    signature: JobSignature, records: Iterable[RunRecord], now: float
) -> tuple[SimilarRun, ...]:
    """Runs that say something about a job, heaviest first."""
    found = []
    for record in records:
        age = max(0.0, now - record.updated_at)
        distance = _distance(signature, record.signature)
        weight = math.exp(-(distance**2) / (2 * BANDWIDTH**2)) * freshness(age)
        if weight >= LEAST_WEIGHT:
            found.append(SimilarRun(record, weight))
    return tuple(sorted(found, key=lambda item: -item.weight))


def freshness(age: float) -> float:
    """What is left of a run's weight after so many seconds."""
    return math.pow(0.5, age / HALF_LIFE_SECONDS)


def _distance(left: JobSignature, right: JobSignature) -> float:
    if left.kind != right.kind or left.accelerators != right.accelerators:
        return 2.0
    if left.command and left.command == right.command:
        return 0.0 if left.image == right.image else 0.5
    return 1.0 if left.name and left.name == right.name else 2.0


def weighted_samples(
    neighbours: Iterable[SimilarRun], value: Callable[[RunRecord], float | None]
) -> tuple[WeightedSample, ...]:
    """A number of each run that has it (positive)."""
    read = ((value(item.record), item.weight) for item in neighbours)
    return tuple(WeightedSample(number, weight) for number, weight in read if number and number > 0)


def quantile(samples: Sequence[WeightedSample], share: float) -> float:
    """Weighted quantile: the least value with at least that share of the weight at or below it."""
    ordered = sorted(samples, key=lambda sample: sample.value)
    total, below = sum(sample.weight for sample in ordered), 0.0
    for sample in ordered:
        below += sample.weight
        if below >= share * total - 1e-12:
            return sample.value
    return ordered[-1].value


def effective_count(samples: Iterable[WeightedSample]) -> float:
    """How many runs stand behind a statistic: their weights summed."""
    return sum(sample.weight for sample in samples)


def spread(samples: Sequence[WeightedSample]) -> float:
    """Weighted median of the distances from the weighted median."""
    middle = quantile(samples, 0.5)
    return quantile([WeightedSample(abs(s.value - middle), s.weight) for s in samples], 0.5)


def interval(samples: Sequence[WeightedSample], target: float) -> tuple[float, float]:
    """Weighted 10 % and 90 % quantiles, at least 25 % wide each way below five effective runs."""
    low, high = min(quantile(samples, 0.1), target), max(quantile(samples, 0.9), target)
    if effective_count(samples) < 5:  # noqa: PLR2004 - five, as said
        low, high = min(low, 0.75 * target), max(high, 1.25 * target)
    return low, high


MIB, GIB = 1 << 20, 1 << 30
SAME_COMMAND_WEIGHT = 0.3
"""Least weight of a run whose throughput is believed."""
FAIR = 1.1
"""Sizes that cost at most that of the cheapest are in the interval."""
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

    job: JobFacts
    runs: tuple[SimilarRun, ...]
    profile: Profile | None = None
    other_jobs: tuple[SimilarRun, ...] = ()
    """Runs of other scripts that may be looked at: they tell of the network, not of the job."""

    def successful_runs(self) -> tuple[SimilarRun, ...]:
        """Runs alike that ended well."""
        return tuple(item for item in self.runs if item.record.outcome == "succeeded")

    def runs_of_command(self) -> tuple[RunRecord, ...]:
        """Records of runs of the same command: another script has another speed."""
        command = self.job.signature.command
        return tuple(
            run.record
            for run in self.runs
            if run.weight >= SAME_COMMAND_WEIGHT and run.record.signature.command == command
        )

    def layout(self) -> SimilarRun | None:
        """The most alike run of which it is known whether its state was sharded."""
        return next((item for item in self.runs if item.record.replicated is not None), None)

    def slots(self) -> int:
        """Snapshots in the arena for each rank, the copy of another pod's among them."""
        layout = self.layout()
        return SLOTS + (0 if layout is None or layout.record.replicated else 1)

    def snapshots(self) -> tuple[WeightedSample, ...]:
        """Bytes of a rank's snapshot, as runs alike had it: at least at this job's size.

        Of sharded state fewer ranks hold more each.
        """
        return weighted_samples(
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


def quantify(
    name: str,
    target: float,
    bounds: tuple[float, float],
    basis: str,
    why: str,
    *,
    samples: Sequence[WeightedSample] | float | None = None,
) -> Quantity:
    """A number with its samples; by default a profile counts as one, anything else as none."""
    if samples is None:
        samples = 1.0 if basis == "profile" else 0.0
    count = samples if isinstance(samples, (int, float)) else effective_count(samples)
    return Quantity(name, target, *bounds, UNITS[name], basis, count, why)


def round_up_mib(count: float) -> float:
    """Bytes, rounded up to MiB."""
    return float(math.ceil(round(count / MIB, 6)) * MIB)


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Constant and slope through the first and the last point by x; neither is negative."""
    (low, first), (high, last) = points[0], points[-1]
    slope = max(0.0, (last - first) / (high - low)) if high > low else 0.0
    constant = last - slope * high
    # A line below zero at the start would promise more than was seen: then it starts at nothing.
    return (constant, slope) if constant >= 0 else (0.0, last / high if high else 0.0)
