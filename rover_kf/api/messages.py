# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Requests and replies between launcher, trainer, sidecar, coordinator and controller.

JSON over HTTP; the version is in the path (``/v1/…``). docs/protocols.md tells the order in time.
"""

from __future__ import annotations

import dataclasses

from rover_kf.api import names
from rover_kf.api.jobs import Event
from rover_kf.api.samples import Goodput, Throughput

# -- who am I ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """Which replica this pod is (sidecar → launcher and trainer)."""

    job: str
    pod: str
    address: str
    """IP address that other pods reach this one at."""
    node_rank: int
    coordinator: bool
    """Whether this pod's sidecar has the coordinator's role."""


# -- rendezvous -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """A launcher that takes part, or wants to."""

    pod: str
    """Pod name; unique in the job at one time."""
    incarnation: str
    """Changes whenever the launcher starts anew (pod uid and process start)."""
    node_rank: int
    """Replica order over the job: Master-0 is 0, Worker-i follows. Stable."""
    processes: int
    """Training processes it will start (nproc per node)."""


@dataclasses.dataclass(frozen=True, slots=True)
class JoinRequest:
    """A launcher is ready to start its processes; answered when the round is complete."""

    member: Member
    store_host: str
    store_port: int
    """Of the TCPStore that this member has opened for the round; rank 0's is used."""
    last_round: int = 0
    """Round that it took part in before, 0 at first."""


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """A world that starts now."""

    number: int
    members: tuple[Member, ...]
    """In rank order."""
    world_size: int
    store_host: str
    store_port: int

    def rank_offset(self, pod: str) -> int:
        """Global rank of the pod's first process."""
        offset = 0
        for member in self.members:
            if member.pod == pod:
                return offset
            offset += member.processes
        raise KeyError(pod)


@dataclasses.dataclass(frozen=True, slots=True)
class JoinReply:
    """Either a round to start, or the order to wait or to end."""

    action: str
    """``start`` (round is set), ``wait`` (nothing yet: ask the same again), ``retry`` (run again:
    join), ``drained`` (idle until SIGTERM), ``closed`` (end with exit_code)."""
    round: Round | None = None
    exit_code: int = 0
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class WatchRequest:
    """Long poll of a launcher whose processes run; its connection is its sign of life."""

    pod: str
    incarnation: str
    round: int
    drain_at: int = 0
    """The drain step it already knows, so that the reply comes only for news."""
    world: Round | None = None
    """The whole round, sent only after a ``report``: a new coordinator adopts it."""
    leaving: bool = False
    """The pod is ending (SIGTERM): let the world drain, then go on without it."""


@dataclasses.dataclass(frozen=True, slots=True)
class WatchReply:
    """News for a running member."""

    action: str
    """``none`` (poll again), ``drain`` (trainers save and leave at drain_at, then join again),
    ``restart`` (kill the processes and join again), ``closed`` (kill, end with exit_code),
    ``report`` (the coordinator is new: send the watch again with the world)."""
    drain_at: int = 0
    exit_code: int = 0
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class LeaveRequest:
    """A launcher goes for good (SIGTERM, drained)."""

    pod: str
    incarnation: str
    reason: str = ""
    drained: bool = False
    """Its processes have saved at the drain step: the others may finish that step in peace."""


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """What a launcher saw of a dead training process, classified (elastic.failures)."""

    pod: str
    incarnation: str
    round: int
    rank: int
    kind: str
    """``process_killed``, ``peer_lost``, ``user_error``, ``out_of_memory``, ``error``, …"""
    scope: str
    """``process``, ``pod``, ``node`` or ``job``: what has to be replaced."""
    action: str
    """``restart``, ``replace_pod``, ``fail_job``."""
    exit_code: int
    """Negative: the signal's number."""
    reason: str
    """One sentence; for a user error the traceback's last lines."""
    counts: bool = True
    """Whether it spends the budget of restarts (a lost peer does not)."""


@dataclasses.dataclass(frozen=True, slots=True)
class FinishRequest:
    """All processes of a member ended with 0; answered when all members' have."""

    pod: str
    incarnation: str
    round: int
    world: Round | None = None
    """The whole round: a coordinator that is new adopts it."""


# -- checkpoint -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class ArenaRequest:
    """A training process asks for two slots of at least this size."""

    local_rank: int
    slot_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class ArenaReply:
    """Where the slots are; created, their memory reserved."""

    directory: str
    slot_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Sealed:
    """A slot holds a whole snapshot (trainer → sidecar → coordinator)."""

    local_rank: int
    rank: int
    world_size: int
    round: int
    step: int
    slot: int
    snapshot_bytes: int
    replicated: bool
    """Every rank holds the same state (DDP): one rank's copy stands for all."""
    copy_seconds: float = 0.0
    pod: str = ""
    """Filled in by the sidecar."""
    pieces: bool = False
    """Every rank holds boxes of larger tensors: all of them serve a world of any size."""
    checksum: int | None = None
    """CRC-32C of the slot; filled in by the sidecar, as the next two."""
    address: str = ""
    node: str = ""
    restored: bool = False
    """Not a save: the rank goes on from this slot in the round."""


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """The part of a tensor that a training process holds (FSDP2, tensor parallel)."""

    name: str
    """In the snapshot."""
    shape: tuple[int, ...]
    """Of the whole tensor."""
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    prefix: bool = False
    """It stands for every tensor of this shape whose name begins so: an optimizer's state, which a
    new process does not have yet, lies as its parameter does."""


@dataclasses.dataclass(frozen=True, slots=True)
class RestoreRequest:
    """A training process asks what to start from."""

    local_rank: int
    rank: int
    world_size: int
    round: int
    wanted: tuple[Wanted, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class RestoreReply:
    """One sealed slot of this pod's arena that now holds the common step, or nothing."""

    step: int | None
    source: str
    """``memory`` (this pod's own arena), ``peer``, ``storage`` or ``none``."""
    path: str = ""
    """Slot file; its first snapshot_bytes bytes are a safetensors file."""
    snapshot_bytes: int = 0
    checksum: int = 0
    """CRC-32C of those bytes, as the sidecar computed it after the seal."""


@dataclasses.dataclass(frozen=True, slots=True)
class WaitRequest:
    """Wait until a step is safe at a level."""

    step: int
    level: str
    """``memory``, ``replica`` or ``durable``."""
    timeout_seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class Holding:
    """A sealed snapshot in some pod's arena."""

    pod: str
    address: str
    """host:port of the sidecar that serves it."""
    local_rank: int
    rank: int
    world_size: int
    step: int
    replicated: bool
    snapshot_bytes: int
    checksum: int
    round: int = 0
    """In which the state came to be: the same step after a rollback is another state."""
    pieces: bool = False
    node: str = ""
    """Kubernetes node of the pod."""
    replica: bool = False
    """A copy of another pod's slot."""

    @property
    def place(self) -> str:
        """Which slots of the pod: the last part but one of its path."""
        return f"{names.REPLICA_PLACE}{self.rank}" if self.replica else str(self.local_rank)


@dataclasses.dataclass(frozen=True, slots=True)
class ResolveRequest:
    """A rank's sidecar asks for the step that all ranks of the round restore."""

    round: int
    rank: int
    world_size: int
    holdings: tuple[Holding, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ResolveReply:
    """The common step, and for this rank where to take it from."""

    step: int | None
    source: str
    """``memory``, ``peer``, ``storage`` or ``none``."""
    holdings: tuple[Holding, ...] = ()
    """For ``memory`` and ``peer``: the one to take as it is, or all of a world of another size,
    first the one whose own tensors the rank takes."""
    path: str = ""
    """For ``storage``: the checkpoint's folder."""


@dataclasses.dataclass(frozen=True, slots=True)
class Durable:
    """A rank's file of a step is on storage (sidecar → coordinator)."""

    pod: str
    rank: int
    world_size: int
    round: int
    step: int
    replicated: bool
    file: str
    file_bytes: int
    checksum: int
    persist_seconds: float = 0.0
    pieces: bool = False
    common: int = 0
    """CRC-32 of what the shared tensors are (checkpoint.split); all ranks' must agree."""
    course: int = 0
    """Round in which the state came to be."""
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    """What the rank's script measured of the state."""


@dataclasses.dataclass(frozen=True, slots=True)
class NamedRequest:
    """Long poll of a sidecar: which step shall all ranks persist?"""

    after: int
    """The number that it knows; answered when another one is named."""
    timeout_seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class Named:
    """The step that all ranks shall persist now (coordinator → sidecar)."""

    number: int
    step: int | None
    """None: nothing new was named in time."""
    round: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class GivenUp:
    """A rank cannot persist the step that was named (sidecar → coordinator)."""

    pod: str
    rank: int
    round: int
    step: int
    reason: str
    pause_seconds: float = 0.0
    """How long no other step shall be named."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicateRequest:
    """Long poll of a sidecar: whose slots shall it copy?"""

    pod: str
    after: int
    """The number of the order that it knows."""
    timeout_seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicateOrder:
    """Slots to copy now (coordinator → sidecar)."""

    number: int
    holdings: tuple[Holding, ...] = ()
    """Empty: nothing new was ordered in time."""


@dataclasses.dataclass(frozen=True, slots=True)
class Replicated:
    """An order is carried out (sidecar → coordinator)."""

    pod: str
    number: int
    reason: str = ""
    """Why it could not be; empty: it was."""


@dataclasses.dataclass(frozen=True, slots=True)
class Acknowledged:
    """A reply that says nothing but that it was done (or not, with the reason)."""

    done: bool = True
    reason: str = ""


# -- controller -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class ScaleRequest:
    """The controller announces how many pods the job will have (before it patches the job)."""

    nodes: int
    reason: str = ""


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
