# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whether ranks that should hold the same state do: between sidecars and coordinator."""

from __future__ import annotations

import dataclasses


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
    round: int
    step: int
    tensors: int = 0
    """How many there are."""
    digest: int | None = None
    """CRC-32 of their names and checksums; None: the slot was overwritten, do not wait for it."""
    listing: tuple[TensorChecksum, ...] = ()
    """Only when it was asked for, and bounded (checkpoint.divergence.listed)."""


@dataclasses.dataclass(frozen=True, slots=True)
class DigestAck:
    """All ranks have reported, or it was waited long enough."""

    send_listing: bool = False
    """Ranks differ: send the digest once more, with its listing."""
