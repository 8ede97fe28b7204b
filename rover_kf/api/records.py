# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the history keeps of a run, and what makes two runs alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from rover_kf.api.data import DataStatus
from rover_kf.api.decisions import ScaleDecision
from rover_kf.api.faults.hang_reports import Hang
from rover_kf.api.faults.node_check_messages import NodeCheckReport
from rover_kf.api.jobs import Event
from rover_kf.api.samples import Goodput, Throughput
from rover_kf.system.html_tables import NotebookTable


@dataclasses.dataclass(frozen=True, slots=True)
class JobSignature:
    """What of a job makes its runs comparable to others."""

    namespace: str
    name: str
    kind: str
    image: str
    command: str
    """Trainer's command and args as the user wrote them, joined by spaces."""
    processes_per_node: int
    accelerators: int
    """Per replica."""
    parameters: float | None = None
    """Model parameters, if known."""


@dataclasses.dataclass(frozen=True, slots=True)
class ProgressSample:
    """How far a run was at a moment."""

    at: float
    """Unix seconds, by the coordinator's clock."""
    step: int
    """Newest that any rank reported."""
    sealed_step: int | None = None
    """Newest step in memory."""
    durable_step: int | None = None
    """Newest step on storage."""
    samples_per_second: float = 0.0
    """Over the last steps; 0 if the trainer tells no samples."""
    memory: float = 0.0
    """Bytes that the worst pod's trainer took; 0: not told."""
    memory_limit: float = 0.0
    """Bytes that a trainer might use then; 0: no limit, or not known."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServerSetup:
    """A TFJob's workers and parameter servers, and the cores of each, from a moment on."""

    since: float
    """Unix seconds, by the coordinator's clock; 0: from the run's begin on."""
    workers: int
    servers: int
    worker_cores: float
    """Limit, else request; 1 where neither is stated."""
    server_cores: float


@dataclasses.dataclass(frozen=True, slots=True)
class RunRecord(NotebookTable):
    """One run of one job, written while it runs and completed when it ends."""

    uid: str
    """Of the job object: the record's key."""
    signature: JobSignature
    started_at: float
    updated_at: float
    outcome: str
    """``running``, ``succeeded``, ``failed`` or ``deleted``."""
    requested: dict[str, float]
    """As admitted: ``replicas``, ``cpu`` (cores), ``memory`` (bytes)."""
    peak: dict[str, float]
    """Seen: ``memory`` (bytes, worst pod), ``cpu`` (cores, worst pod), if measured."""
    windows: tuple[Throughput, ...] = ()
    goodput: Goodput = dataclasses.field(default_factory=Goodput)
    """Of the whole run: all accounts, and what lay between them."""
    account_from: float = 0.0
    """When the coordinator's present account was begun; 0: not known."""
    account_before: Goodput = dataclasses.field(default_factory=Goodput)
    """What of ``goodput`` lies before it: a replaced first pod begins anew."""
    decisions: tuple[ScaleDecision, ...] = ()
    events: tuple[Event, ...] = ()
    steps: int = 0
    total_steps: int | None = None
    snapshot_bytes: int = 0
    save_seconds: float = 0.0
    """Mean blocked time of one save."""
    restart_seconds: float = 0.0
    restarts: int = 0
    checkpoint_every: int = 0
    verdict: str = ""
    preflights: tuple[NodeCheckReport, ...] = ()
    """Checks of its nodes; the newest four."""
    hangs: tuple[Hang, ...] = ()
    """With every rank's stacks; the newest eight."""
    memory_raised: float = 0.0
    """Bytes that the trainer's memory limit was raised to after kills for memory; 0: never."""
    data: tuple[DataStatus, ...] = ()
    """How far data sets were read when that was last told, with all that was ever set aside."""
    replicated: bool | None = None
    """Whether every rank's snapshot held all of the state; None: not known."""
    storage: str = ""
    """Which storage its checkpoints went to (injection.storage.identity); empty: none."""
    storage_rate: float = 0.0
    """Bytes a second that it took of the slowest pod, measured last; 0: not measured."""
    looks: tuple[ProgressSample, ...] = ()
    """Evenly over the run, oldest first; at most 128."""
    servers: tuple[ServerSetup, ...] = ()
    """Of a job with parameter servers, oldest first; the newest 32."""

    def _html_title(self) -> str:
        return f"run of {self.signature.namespace}/{self.signature.name}: {self.outcome}"

    def _html_rows(self) -> Iterable[Sequence[object]]:
        yield "seconds", f"{self.updated_at - self.started_at:.0f}"
        yield "steps", f"{self.steps} of {self.total_steps}" if self.total_steps else self.steps
        if self.goodput.total:
            yield "goodput", f"{self.goodput.fraction:.0%}"
        yield "restarts", self.restarts
        yield "changes of size", sum(one.applied for one in self.decisions)
        newest = f"{self.windows[-1].samples_per_second:.0f}" if self.windows else None
        yield "newest throughput, samples/s", newest
        for name, value in self.peak.items():
            yield f"peak {name}", f"{value:,.4g}"
        if self.verdict:
            yield "verdict", self.verdict
