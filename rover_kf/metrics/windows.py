# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Step reports of all ranks → windows of steady throughput. Pure; the samples carry the times.

A step counts when every rank of the round has reported it; its time is the slowest rank's. The
first steps after a change of the world are dropped: they hold warm-up, not training.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics

from rover_kf.api.samples import StepReport, StepSample, Throughput

WARM_UP_STEPS = 3
MAX_WINDOWS = 64
"""Kept; beyond it the oldest of the world with the most is given up, so that what another size
showed is not forgotten while the job stays at one."""
MAX_OPEN_STEPS = 4096
"""Steps that some rank has not reported; beyond it the oldest are given up."""
RECENT_STEPS = 20


@dataclasses.dataclass(frozen=True, slots=True)
class CompletedStep(StepSample):
    """A step that every rank has ended, with the times of the slowest."""

    stride: int = 1
    """Steps since the one that was told before: a chief whose workers are clients of their own
    tells how far they are now and then."""


class ThroughputWindows:
    """The windows of one job, so many seconds long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._round = 0
        self._nodes = 0
        self._world_size = 0
        self._warm_up_left = WARM_UP_STEPS
        self._last_step = 0
        self._open: dict[int, dict[int, StepSample]] = {}
        self._steps: list[CompletedStep] = []
        self._closed: list[Throughput] = []
        self._recent: collections.deque[CompletedStep] = collections.deque(maxlen=RECENT_STEPS)

    def begin(self, round_number: int, *, nodes: int, world_size: int) -> None:
        """A new world: an unfinished window is dropped, warm-up begins."""
        self._round, self._nodes, self._world_size = round_number, nodes, world_size
        self._warm_up_left = WARM_UP_STEPS
        self._last_step = 0
        self._open.clear()
        self._steps.clear()
        self._recent.clear()

    def observe(self, report: StepReport) -> tuple[CompletedStep, ...]:
        """Take a report; returns the steps that it completed. Other rounds' are ignored."""
        if report.round != self._round:
            return ()
        found = []
        for sample in report.samples:
            ranks = self._open.setdefault(sample.step, {})
            ranks[report.rank] = sample
            if len(ranks) == self._world_size:
                found.append(self._complete_step(self._open.pop(sample.step)))
        while len(self._open) > MAX_OPEN_STEPS:
            del self._open[min(self._open)]
        for step in found:
            self._add_step(step)
        return tuple(found)

    @property
    def closed(self) -> tuple[Throughput, ...]:
        """Whole windows, oldest first."""
        return tuple(self._closed)

    @property
    def samples_per_second(self) -> float:
        """Over the last steps; 0 before there are any."""
        seconds = sum(step.seconds for step in self._recent)
        return sum(step.samples for step in self._recent) / seconds if seconds else 0.0

    @property
    def closes_at(self) -> float:
        """When the open window will probably close, by the samples' clock; 0 in warm-up."""
        begun = bool(self._steps)
        if self._warm_up_left or not (begun or self._recent):
            return 0.0
        newest = self._recent[-1]
        first = self._steps[0] if begun else newest
        started_at = first.ended_at - first.seconds if begun else newest.ended_at
        seconds = statistics.median(step.seconds for step in self._recent)
        left = started_at + self._seconds - newest.ended_at
        return newest.ended_at + math.ceil(left / seconds) * seconds if seconds else 0.0

    def _complete_step(self, ranks: dict[int, StepSample]) -> CompletedStep:
        step = _merge_ranks(ranks)
        stride = max(step.step - self._last_step, 1) if self._last_step else 1
        self._last_step = step.step
        return dataclasses.replace(step, stride=stride)

    def _add_step(self, step: CompletedStep) -> None:
        if self._warm_up_left:
            self._warm_up_left -= 1
            return
        self._recent.append(step)
        self._steps.append(step)
        started_at = self._steps[0].ended_at - self._steps[0].seconds
        if step.ended_at - started_at >= self._seconds:
            self._closed = keep_recent([*self._closed, self._summarise(started_at)])
            self._steps.clear()

    def _summarise(self, started_at: float) -> Throughput:
        steps = self._steps
        busy = sum(step.seconds for step in steps)
        samples, count = sum(step.samples for step in steps), sum(step.stride for step in steps)
        return Throughput(
            started_at=started_at,
            ended_at=steps[-1].ended_at,
            nodes=self._nodes,
            world_size=self._world_size,
            steps=count,
            samples=samples,
            step_seconds=statistics.median(step.seconds / step.stride for step in steps),
            global_batch=samples / count,
            wait_fraction=min(sum(s.wait_seconds for s in steps) / busy, 1.0) if busy else 0.0,
            save_seconds=sum(step.save_seconds for step in steps),
        )


def keep_recent(windows: list[Throughput]) -> list[Throughput]:
    """Return at most MAX_WINDOWS of windows in the order of time, some of each world."""
    kept = list(windows)
    while len(kept) > MAX_WINDOWS:
        counts = collections.Counter((window.nodes, window.world_size) for window in kept)
        largest = max(counts.values())
        kept.remove(next(w for w in kept if counts[w.nodes, w.world_size] == largest))
    return kept


def _merge_ranks(ranks: dict[int, StepSample]) -> CompletedStep:
    samples = ranks.values()
    return CompletedStep(
        step=next(iter(samples)).step,
        ended_at=max(sample.ended_at for sample in samples),
        seconds=max(sample.seconds for sample in samples),
        samples=sum(sample.samples for sample in samples),
        wait_seconds=max(sample.wait_seconds for sample in samples),
        save_seconds=max(sample.save_seconds for sample in samples),
    )
