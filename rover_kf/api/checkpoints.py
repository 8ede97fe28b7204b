# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Where states lie and which one counts: between trainer, sidecars and coordinator."""

from __future__ import annotations

import dataclasses

from rover_kf.api import names
from rover_kf.api.states import NO_ROUND, RoundId, State


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
class SlotSealed:
    """A slot holds a whole snapshot (trainer → sidecar → coordinator)."""

    local_rank: int
    rank: int
    world_size: int
    round: RoundId
    """That the rank trains in."""
    state: State
    """Of an earlier round: not a save, the rank resumes from this slot."""
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

    @property
    def is_restored(self) -> bool:
        """Whether it is not a save: the rank resumes from this slot."""
        return self.state.round != self.round

    @property
    def stored_as(self) -> State:
        """The name under which the round stores it."""
        return self.state.restored_in(self.round)


@dataclasses.dataclass(frozen=True, slots=True)
class RequestedBoxes:
    """The part that a training process holds of tensors (FSDP2, tensor parallel).

    Many are cut alike: a mixture of experts has tens of thousands of parameters of two shapes.
    """

    shape: tuple[int, ...]
    """Of the whole tensor."""
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    names: tuple[str, ...]
    """In the snapshot."""
    prefixes: tuple[str, ...] = ()
    """Of names: every tensor of this shape is meant whose name begins so. An optimizer's state,
    which a new process does not have yet, lies as its parameter does."""


@dataclasses.dataclass(frozen=True, slots=True)
class RejectedState:
    """A state that its training process could not resume from."""

    state: State
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class RestoreRequest:
    """A training process asks what to start from."""

    local_rank: int
    rank: int
    world_size: int
    round: RoundId
    life: str = ""
    """Of the process; another one in the same place has another."""
    requested: tuple[RequestedBoxes, ...] = ()
    rejected: tuple[RejectedState, ...] = ()
    """What it was given in this round and could not take: an older step is wanted. Only of a world
    of one process, which holds but a part of its state itself."""
    plain_data_only: bool = False
    """Plain data is wanted and nothing else: no slot is filled."""


@dataclasses.dataclass(frozen=True, slots=True)
class RestoreReply:
    """One sealed slot of this pod's arena that now holds the common state, or nothing."""

    state: State | None
    source: str
    """``memory`` (this pod's own arena), ``peer``, ``storage`` or ``none``."""
    path: str = ""
    """Slot file; its first snapshot_bytes bytes are a safetensors file."""
    snapshot_bytes: int = 0
    checksum: int = 0
    """CRC-32C of those bytes, as the sidecar computed it after the seal."""
    plain_data: str = ""
    """JSON of what is no tensor, where that alone was asked for: there is no path then."""
    round: RoundId = NO_ROUND
    """That the process trains in: its own, or one that the coordinator has counted where no
    launcher has."""

    @property
    def step(self) -> int | None:
        """Of the state."""
        return self.state.step if self.state else None


@dataclasses.dataclass(frozen=True, slots=True)
class RestorableStepsRequest:
    """A training process asks which of its steps could still be restored."""

    local_rank: int


@dataclasses.dataclass(frozen=True, slots=True)
class RestorableStepsReply:
    """Every step that this pod's memory, the pod that keeps a copy, or storage has or is given."""

    steps: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class WaitRequest:
    """Wait until a state, or a later one, is safe at a level."""

    state: State
    level: str
    """``memory``, ``replica`` or ``durable``."""
    timeout_seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class SlotInfo:
    """A sealed snapshot in some pod's arena."""

    pod: str
    address: str
    """host:port of the sidecar that serves it."""
    local_rank: int
    rank: int
    world_size: int
    state: State
    replicated: bool
    snapshot_bytes: int
    checksum: int
    pieces: bool = False
    node: str = ""
    """Kubernetes node of the pod."""
    replica: bool = False
    """A copy of another pod's slot."""

    @property
    def path_segment(self) -> str:
        """Which slots of the pod: the last part but one of its path."""
        return f"{names.REPLICA_PLACE}{self.rank}" if self.replica else str(self.local_rank)


@dataclasses.dataclass(frozen=True, slots=True)
class RestoreStepRequest:
    """A rank's sidecar asks for the state that all ranks of the round restore."""

    round: RoundId
    rank: int
    world_size: int
    slots: tuple[SlotInfo, ...]
    rejected: tuple[State, ...] = ()
    """States that the rank cannot take."""
    life: str = ""
    """Of the training process."""
    damaged: tuple[RejectedState, ...] = ()
    """Checkpoints on storage in which a rank of the round found damage."""


@dataclasses.dataclass(frozen=True, slots=True)
class RestoreStepReply:
    """The common state, and for this rank where to take it from."""

    state: State | None
    source: str
    """``memory``, ``peer``, ``storage`` or ``none``."""
    slots: tuple[SlotInfo, ...] = ()
    """For all from memory: the one to take as it is, or all of a world of another size, first the
    one whose own tensors the rank takes."""
    path: str = ""
    """For ``storage``: the checkpoint's folder."""
    replicas_in_use: bool = False
    """Some rank of the round reads replicas, which stay until then."""
    alternatives: tuple[SlotInfo, ...] = ()
    """For ``peer``: each as good as the one to take, where that one cannot be had."""
    round: RoundId = NO_ROUND
    """That the ranks train in."""


@dataclasses.dataclass(frozen=True, slots=True)
class StorageRead:
    """How far a rank has read what its round restores from storage (sidecar → coordinator)."""

    round: RoundId
    rank: int
    world_size: int
    state: State
    """As it was saved."""
    read_bytes: int
    finished: bool = False
    """All bytes that the rank needs are in its slot, and are what the manifest promises."""
    damage: str = ""
    """What is wrong, with the file's name; empty: nothing was so far."""
    timeout_seconds: float = 0.0
    """How long to wait for the other ranks."""


@dataclasses.dataclass(frozen=True, slots=True)
class StorageReadReply:
    """What all ranks of the round have read."""

    complete: bool
    """Every rank has verified its part: the state is the one to resume from."""
    damage: str = ""
    """What some rank found wrong: the ranks have to ask for another state."""
    read_bytes: int = 0
    """Of all ranks together; no progress where it stays the same."""
    missing: tuple[int, ...] = ()
    """Ranks that still read."""


@dataclasses.dataclass(frozen=True, slots=True)
class RankPersisted:
    """A rank's file of a state is on storage (sidecar → coordinator)."""

    pod: str
    rank: int
    world_size: int
    state: State
    """As it is stored."""
    origin: State
    """As it was saved."""
    replicated: bool
    file: str
    file_bytes: int
    checksum: int
    persist_seconds: float = 0.0
    pieces: bool = False
    replicated_crc: int = 0
    """CRC-32 of what the shared tensors are (checkpoint.split); all ranks' must agree."""
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    """What the rank's script measured of the state."""
    storage_seconds: float = 0.0
    """Of persist_seconds, what the storage took: without waits for the bandwidth cap; 0: the file
    was there already."""


@dataclasses.dataclass(frozen=True, slots=True)
class PersistOrderRequest:
    """Long poll of a sidecar: which step shall all ranks persist?"""

    after: int
    """The number that it knows; answered when another one is named."""
    timeout_seconds: float
    pins_slots: bool = False
    """It keeps the slots of that number's step: answered, too, when that is under way no more."""


@dataclasses.dataclass(frozen=True, slots=True)
class PersistOrder:
    """The state that all ranks shall persist now (coordinator → sidecar)."""

    number: int
    state: State | None
    """As it will be stored; None: nothing new was named in time."""
    in_progress: bool = False
    """What was named before is neither committed nor given up yet."""
    upcoming: bool = False
    """No rank had sealed the state when it was named: the first one from it on is meant."""


@dataclasses.dataclass(frozen=True, slots=True)
class PodEnded:
    """What a pod's training processes have left when they have ended (sidecar → coordinator)."""

    pod: str
    states: dict[str, State]
    """Newest sealed state, as it would be stored, by local rank; a rank that has saved nothing is
    not there."""


@dataclasses.dataclass(frozen=True, slots=True)
class PersistAborted:
    """A rank cannot persist the state that was named (sidecar → coordinator)."""

    pod: str
    rank: int
    state: State
    reason: str
    pause_seconds: float = 0.0
    """How long no other state shall be named; 0: storage has refused nothing."""
    ranks: int = 0
    """Of the round; 0: not known."""
