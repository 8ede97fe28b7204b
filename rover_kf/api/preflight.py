# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The pre-flight check of a job's nodes: what is measured, and what it means."""

from __future__ import annotations

import dataclasses

OK, SLOW, FAULTY, UNCLEAR = "ok", "slow", "faulty", "unclear"
"""Verdicts. ``unclear``: something is wrong in which the pod takes part, and nothing tells whether
it is the cause."""


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """A pod by itself."""

    pod: str
    node: str = ""
    """Kubernetes node of the pod; empty: not known."""
    device: str = ""
    """What multiplied: an accelerator's name, or ``cpu``."""
    matmul_seconds: float | None = None
    """One multiplication, of the pod's slowest process; None: not measured."""
    problem: str = ""
    """Why it cannot compute; empty: it can."""


@dataclasses.dataclass(frozen=True, slots=True)
class PairMeasured:
    """Two pods together."""

    first: str
    """Pod, or node where it is of another job."""
    second: str
    seconds: float | None = None
    """One all-reduce, of the slowest process; None: it failed."""
    problem: str = ""
    """Why it failed; empty: it did not."""


@dataclasses.dataclass(frozen=True, slots=True)
class NodeVerdict:
    """What a check found of one pod and its node."""

    pod: str
    node: str
    verdict: str
    """``ok``, ``slow``, ``faulty`` or ``unclear``."""
    reason: str = ""
    """One sentence with the numbers; empty where all is well."""


@dataclasses.dataclass(frozen=True, slots=True)
class Preflight:
    """A whole check."""

    at: float
    """When it ended; Unix seconds."""
    seconds: float
    """How long it took, from when the first pod asked for it."""
    pods: tuple[Measured, ...] = ()
    pairs: tuple[PairMeasured, ...] = ()
    verdicts: tuple[NodeVerdict, ...] = ()
