# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Who copies whose slots, or makes which parity: between sidecars and coordinator."""

from __future__ import annotations

import dataclasses

from rover_kf.api.checkpoints import Holding, Lane


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicateRequest:
    """Long poll of a sidecar: whose slots shall it copy?"""

    pod: str
    after: int
    """The number of the order that it knows."""
    timeout_seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicateOrder:
    """Slots to copy, or to make parities of, now (coordinator → sidecar).

    Both empty, with another number than the one that is known: nothing is to be kept any more.
    """

    number: int
    """The one that is known: nothing new was ordered in time."""
    holdings: tuple[Holding, ...] = ()
    """To copy."""
    lanes: tuple[Lane, ...] = ()
    """To make this pod's parity of."""


@dataclasses.dataclass(frozen=True, slots=True)
class Replicated:
    """An order is carried out (sidecar → coordinator)."""

    pod: str
    number: int
    reason: str = ""
    """Why it could not be; empty: it was."""


@dataclasses.dataclass(frozen=True, slots=True)
class KeptRequest:
    """Which slots of other pods does a sidecar keep (coordinator → keeper)?"""

    timeout_seconds: float
    """How long it may look."""


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """Copies that a pod keeps, each verified."""

    known: bool
    """False: they are still being verified; ask again."""
    holdings: tuple[Holding, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class ParityMade:
    """A pod's parities of an order are made, and not sealed yet (sidecar → coordinator)."""

    pod: str
    number: int
    """Of the order."""
    sums: tuple[tuple[int, ...], ...]
    """For each lane of the order, for each of its members: CRC-32C of the stripe that was read."""
    timeout_seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class ParityVerdict:
    """Whether a pod may seal its parities (coordinator → sidecar)."""

    known: bool
    """False: others of the group have not told yet; ask again."""
    reason: str = ""
    """Why it may not; empty: it may."""
    told: bool = False
    """Whether nobody needs to be told of that: another pod has told, or the order is over."""
