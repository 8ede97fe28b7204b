# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a controller asks of a coordinator, and the plain answer that everybody gives."""

from __future__ import annotations

import dataclasses

from rover_kf.api import codec
from rover_kf.api.bounds import check_bounds
from rover_kf.api.data import DataStatus
from rover_kf.api.faults.hang_reports import Hang
from rover_kf.api.faults.limit_raises import CpuUse, MemoryTrend, OomKill, PodCpu
from rover_kf.api.faults.node_check_messages import NodeCheckReport
from rover_kf.api.jobs import Event
from rover_kf.api.samples import Goodput, Throughput


@dataclasses.dataclass(frozen=True, slots=True)
class FaultyNode:
    """A node on which training cannot go on, though elsewhere it can."""

    node: str
    """Its Kubernetes name."""
    pod: str
    """That showed it."""
    kind: str
    """Of the failure (docs/failures.md), or ``preflight``."""
    reason: str
    """One sentence."""
    observed_at: float
    """Unix seconds."""


@dataclasses.dataclass(frozen=True, slots=True)
class Straggler:
    """A pod one of whose ranks is slow by itself (elastic.stragglers has the rule)."""

    pod: str
    node: str
    """Its Kubernetes name; empty: not known."""
    rank: int
    ratio: float
    """Its own time a step over the others'."""
    since: float
    """When the rule began to hold; Unix seconds."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ack:
    """A reply that says nothing but that it was done (or not, with the reason)."""

    done: bool = True
    reason: str = ""
    permanent: bool = False
    """It was not done, and waiting does not change that."""

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing to wait for."""
        return self.done or self.permanent


@dataclasses.dataclass(frozen=True, slots=True)
class ScaleRequest:
    """The controller announces how many pods the job will have (before it patches the job)."""

    nodes: int
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class UnavailablePodsRequest:
    """The controller says whose pods cannot come now: a round does not wait for them."""

    ranks: tuple[int, ...]
    """Their node ranks."""
    reason: str
    """Which pods they are, and why they cannot come."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServerLostRequest:
    """The controller says that a server of the world's is gone with its node.

    Who was connected to it hears nothing of that: its requests would wait for as long as TCP does.
    """

    uid: str
    """Of the pod; told again it counts once."""
    reason: str
    """Which pod it is, and what became of it."""


MAX_LISTED = {"events": 256, "windows": 64, "hangs": 4, "faulty_nodes": 16, "oom_kills": 8}
"""Items of a status' lists at most; its reader rejects more."""


@dataclasses.dataclass(frozen=True, slots=True)
class CoordinatorStatus:
    """Everything a controller needs of a job, in one GET a window."""

    job: str
    phase: str
    """``waiting``, ``training``, ``draining``, ``recovering``, ``finished``, ``failed``."""
    round: int
    nodes: int
    """Members of the current round."""
    expected_nodes: int
    world_size: int
    step: int
    """Newest step that any rank reported."""
    total_steps: int | None
    sealed_step: int | None
    durable_step: int | None
    samples_per_second: float
    """Over the last steps, for display; decisions use ``windows``."""
    restarts: int
    windows: tuple[Throughput, ...]
    """Oldest first, at most 64."""
    goodput: Goodput
    events: tuple[Event, ...]
    """With a sequence above the one asked for; at most 256."""
    started_at: float
    now: float
    restart_seconds: float = 0.0
    """Last measured time from a change of the world until every rank stepped again; 0 if none."""
    verdict: str = ""
    """Why the job failed, if it did."""
    saves: int = 0
    save_seconds: float = 0.0
    """Summed over saves, slowest rank."""
    snapshot_bytes: int = 0
    """Of the newest sealed snapshot, one rank."""
    account_from: float = 0.0
    """When the goodput account was begun; it goes on where only the coordinator's process ended."""
    hangs: tuple[Hang, ...] = ()
    """Whose Event has a sequence above the one asked for; at most 4."""
    replicated: bool | None = None
    """Whether every rank's snapshot holds all of the state; None: nothing was sealed yet."""
    faulty_nodes: tuple[FaultyNode, ...] = ()
    """Nodes that the job's pods had better leave; the newest 16."""
    preflight: NodeCheckReport | None = None
    oom_kills: tuple[OomKill, ...] = ()
    """The newest of each pod, at most 8."""
    awaited_ranks: tuple[int, ...] = ()
    """Absent node ranks that the next round waits for, at most 64; none in a round."""
    memory_peak: float = 0.0
    """Bytes of a trainer's container with its libraries, without the arena; 0: unknown."""
    memory_trend: MemoryTrend | None = None
    """How that grows; None while too little was seen of this world."""
    cpu_peak: float = 0.0
    """Cores that it kept busy over a few seconds, at most."""
    cpu: CpuUse | None = None
    """Of the pod that is throttled most, over one window; None: no limit, or not known yet."""
    pod_cpus: tuple[PodCpu, ...] = ()
    """The same of pods, those held back most first, at most 8."""
    stragglers: tuple[Straggler, ...] = ()
    """Pods that the others wait for, at most 8."""
    window_closes: float = 0.0
    """When the current throughput window will probably close, by ``now``; 0: unknown."""
    data: tuple[DataStatus, ...] = ()
    """Data sets whose slots are leased."""
    storage_rate: float = 0.0
    """Bytes a second that storage took of the slowest pod lately; 0: not measured."""


def read_status(data: bytes) -> CoordinatorStatus:
    """Read what a job's pod reports, which its tenant may have made up.

    Raises:
        ProtocolError: it is no status, or a value is out of bounds.
    """
    status = codec.loads(CoordinatorStatus, data)
    check_bounds(status, MAX_LISTED)
    return status
