# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Measurements: what a training process reports, and what a window of them says."""

from __future__ import annotations

import dataclasses
import math

CLOCKS_AGREE = 10.0
"""Seconds. A report is under way for less; so far apart, one of two clocks is wrong."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepSample:
    """One optimizer step of one rank."""

    step: int
    ended_at: float
    """Unix seconds."""
    seconds: float
    """From the end of the previous step to the end of this one, saves included."""
    samples: int = 0
    """Samples that this rank consumed in the step; 0 if the trainer does not say."""
    wait_seconds: float = 0.0
    """Of ``seconds``, spent waiting for data, if the trainer says."""
    save_seconds: float = 0.0
    """Of ``seconds``, blocked by saving a checkpoint."""
    rank_local_seconds: float = 0.0
    """Of ``seconds``, the rank's own until the last gradient; 0: not measured."""


@dataclasses.dataclass(frozen=True, slots=True)
class DataPosition:
    """How far a rank's loader is through an epoch whose samples nobody leases."""

    name: str
    epoch: int
    samples: int
    """Of the epoch."""
    done: int
    """Of them, by all ranks' steps."""
    consumed: int = 0
    """By this rank, since its process began or the epoch did."""
    prefetched: int = 0
    """That this rank's workers have been given and its loop has not."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepReport:
    """Steps of one rank since its last report (trainer → sidecar → coordinator)."""

    rank: int
    world_size: int
    round: int
    samples: tuple[StepSample, ...]
    total_steps: int | None = None
    """Steps that the whole training will take, if the trainer says."""
    phase: str = ""
    """Of rover_kf.api.faults.hang_reports; empty: unknown. It may come without samples."""
    sent_at: float = 0.0
    """By the clock that the samples are of; 0: it does not say."""
    memory: int = 0
    """Bytes of no file in the container, each page once, from its first rank; 0: unknown."""
    file_memory: int = 0
    """Bytes of mapped files, by the process of the container that has most of them."""
    cores: float = 0.0
    """Kept busy by the process and its loaders' workers."""
    data: tuple[DataPosition, ...] = ()
    """At most 16."""

    def adjust_clock(self, now: float) -> StepReport:
        """Return the report by the receiver's clock if the clocks differ too much."""
        off = now - self.sent_at if self.sent_at else 0.0
        if abs(off) < CLOCKS_AGREE:
            return self
        samples = (
            dataclasses.replace(sample, ended_at=sample.ended_at + off) for sample in self.samples
        )
        return dataclasses.replace(self, samples=tuple(samples), sent_at=now)


@dataclasses.dataclass(frozen=True, slots=True)
class Throughput:
    """One window of steady training at one world size."""

    started_at: float
    ended_at: float
    nodes: int
    world_size: int
    steps: int
    samples: int
    """Over all ranks."""
    step_seconds: float
    """Median over the window's steps."""
    global_batch: float
    """Samples a step over all ranks, mean."""
    wait_fraction: float = 0.0
    save_seconds: float = 0.0
    """Blocked by saves, summed over the window, slowest rank."""

    @property
    def samples_per_second(self) -> float:
        """Global batch over the median step: robust to one slow step."""
        return self.global_batch / self.step_seconds if self.step_seconds else 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Goodput:
    """Seconds of a job by what they were spent on; they sum to the job's age."""

    waiting: float = 0.0
    """For pods, at first until every rank's first step begins."""
    productive: float = 0.0
    """Steps that were not lost, and what lies between them."""
    checkpoint: float = 0.0
    """Blocked by saves in such steps."""
    recovery: float = 0.0
    """From the last step before a failure until the next one begins, but for the rendezvous."""
    scaling: float = 0.0
    """The same of a planned change of the world, with its rendezvous."""
    rendezvous: float = 0.0
    """Of a recovery, from the call to come together until the round stands."""
    redone: float = 0.0
    """Steps that had been made before a failure and were lost."""

    @property
    def total(self) -> float:
        """All seconds accounted for."""
        return math.fsum(dataclasses.astuple(self))

    @property
    def fraction(self) -> float:
        """Productive share of the whole; 0 before anything happened."""
        return self.productive / self.total if self.total else 0.0

    def plus(self, other: Goodput) -> Goodput:
        """Two accounts of different times as one."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Goodput(*(one + more for one, more in pairs))
