# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job's progress as one value, for terminals and notebooks; pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from rover_kf.api import names
from rover_kf.api.data import DataStatus
from rover_kf.api.jobs import Event, JobKey, ObservedJob, Pod
from rover_kf.api.records import RunRecord
from rover_kf.api.samples import Goodput
from rover_kf.api.status import CoordinatorStatus
from rover_kf.system.html_tables import NotebookTable


@dataclasses.dataclass(frozen=True, slots=True)
class Progress(NotebookTable):
    """Where a job stands."""

    job: str
    phase: str
    """The Training Operator's last condition."""
    activity: str
    """The coordinator's word: waiting, training, draining, recovering, finished, failed."""
    replicas: int
    """Pods that the job wants."""
    running: int
    """Pods that run."""
    nodes: int
    """Pods in the current world."""
    step: int
    total_steps: int | None
    samples_per_second: float
    sealed_step: int | None
    """Newest step in memory."""
    durable_step: int | None
    """Newest step on storage."""
    restarts: int
    verdict: str = ""
    goodput: Goodput | None = None
    """What the job's seconds were spent on; None: the coordinator has not said."""
    data: tuple[DataStatus, ...] = ()
    """Data sets whose slots are leased."""
    events: tuple[Event, ...] = ()
    """New since the last look, oldest first."""
    timestamp: float = 0.0
    """Unix seconds of the look."""
    namespace: str = "default"
    kind: str = names.PYTORCHJOB
    """Both of the job."""

    @property
    def key(self) -> JobKey:
        """Where the job is found."""
        return JobKey(self.namespace, self.job, self.kind)

    @property
    def finished(self) -> bool:
        """Whether the Training Operator has given its final verdict."""
        return self.phase in ("Succeeded", "Failed")

    def _html_title(self) -> str:
        return self.job

    def _html_rows(self) -> Iterable[Sequence[object]]:
        total = f" of {self.total_steps}" if self.total_steps else ""
        yield "phase", ", ".join(filter(None, (self.phase or "New", self.activity)))
        yield "replicas", f"{self.running} of {self.replicas} run, {self.nodes} in the world"
        yield "step", f"{self.step}{total}"
        yield "samples a second", f"{self.samples_per_second:.0f}"
        yield "newest step in memory", self.sealed_step
        yield "newest step on storage", self.durable_step
        yield "restarts", self.restarts
        if self.goodput is not None and self.goodput.total:
            yield "goodput", f"{self.goodput.fraction:.0%}"
        if self.verdict:
            yield "verdict", self.verdict


def make_progress(
    job: ObservedJob,
    pods: Sequence[Pod],
    status: CoordinatorStatus | None,
) -> Progress:
    """Fold what is seen of a job into one value; status None if the coordinator is silent."""
    return Progress(
        job=job.key.name,
        phase=job.phase,
        activity=status.phase if status else "",
        replicas=sum(job.replicas.values()),
        running=sum(pod.phase == "Running" and not pod.deleting for pod in pods),
        nodes=status.nodes if status else 0,
        step=status.step if status else 0,
        total_steps=status.total_steps if status else None,
        samples_per_second=status.samples_per_second if status else 0.0,
        sealed_step=status.sealed_step if status else None,
        durable_step=status.durable_step if status else None,
        restarts=status.restarts if status else 0,
        verdict=status.verdict if status else "",
        goodput=status.goodput if status else None,
        data=status.data if status else (),
        namespace=job.key.namespace,
        kind=job.key.kind,
    )


def with_final_record(progress: Progress, record: RunRecord | None) -> Progress:
    """The progress of a job that has ended, with what the history keeps of it."""
    if record is None:
        return progress
    newest = record.looks[-1] if record.looks else None
    return dataclasses.replace(
        progress,
        step=record.steps,
        total_steps=record.total_steps,
        durable_step=newest.durable_step if newest else None,
        restarts=record.restarts,
        verdict=record.verdict,
        goodput=record.goodput,
        data=record.data,
    )


def carry_over(now: Progress, before: Progress | None) -> Progress:
    """The progress with what the coordinator said before, if it is silent now."""
    if before is None or now.activity:
        return now
    return dataclasses.replace(
        before,
        phase=now.phase,
        activity="" if now.finished else before.activity,
        replicas=now.replicas,
        running=now.running,
        samples_per_second=0.0,
        timestamp=now.timestamp,
    )
