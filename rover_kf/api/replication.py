# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Who copies whose slots, and whether ranks that should hold the same state do.

Messages between sidecars and coordinator.
"""

from __future__ import annotations

import dataclasses

from rover_kf.api.checkpoints import SlotInfo
from rover_kf.api.states import State


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicateRequest:
    """Long poll of a sidecar: whose slots shall it copy?"""

    pod: str
    after: int
    """The number of the order that it knows."""
    timeout_seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicateOrder:
    """Slots to copy now (coordinator → sidecar).

    None of them, with another number than the one that is known: nothing is to be kept any more.
    """

    number: int
    """The one that is known: nothing new was ordered in time."""
    slots: tuple[SlotInfo, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Replicated:
    """An order is carried out (sidecar → coordinator)."""

    pod: str
    number: int
    reason: str = ""
    """Why it could not be; empty: it was."""


@dataclasses.dataclass(frozen=True, slots=True)
class StoredReplicasRequest:
    """Which slots of other pods does a sidecar keep (coordinator → keeper)?"""

    timeout_seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class StoredReplicas:
    """Copies that a pod keeps, each verified."""

    verified: bool
    """False: they are still being verified; ask again."""
    slots: tuple[SlotInfo, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class SealAck:
    """The coordinator knows of a seal."""

    send_digest: bool = False
    """The step is one whose replicas are compared: send a ReplicaDigest."""


@dataclasses.dataclass(frozen=True, slots=True)
class TensorChecksum:
    """A tensor that all ranks should hold alike, or several under the first one's name."""

    name: str
    checksum: int
    """CRC-32C of its type, shape and bytes."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicaDigest:
    """What a rank's replicated tensors of a step come to (sidecar → coordinator)."""

    pod: str
    rank: int
    world_size: int
    state: State
    tensors: int = 0
    digest: int | None = None
    """CRC-32 of their names and checksums; None: the slot was overwritten, do not wait for it."""
    listing: tuple[TensorChecksum, ...] = ()
    """Only when it was asked for, and bounded (checkpoint.divergence.listed)."""


@dataclasses.dataclass(frozen=True, slots=True)
class DigestAck:
    """All ranks have reported, or it was waited long enough."""

    send_listing: bool = False
    """Ranks differ: send the digest once more, with its listing."""
