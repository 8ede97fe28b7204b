# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The pre-flight check of a job's nodes: what is measured, and what it means."""

from __future__ import annotations

import dataclasses

from rover_kf.api.membership import Member

OK, SLOW, FAULTY, UNCLEAR = "ok", "slow", "faulty", "unclear"
"""Verdicts; ``unclear``: the pod takes part in a problem, and may not be its cause."""


@dataclasses.dataclass(frozen=True, slots=True)
class PodMeasurement:
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
    absent: bool = False
    """It gave no answer: its launcher has ended or is stuck, which says nothing of the node."""


@dataclasses.dataclass(frozen=True, slots=True)
class PairMeasurement:
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
class NodeCheckReport:
    """A whole check."""

    at: float
    """When it ended; Unix seconds."""
    seconds: float
    """How long it took, from when the last pod had come: what it adds to the start."""
    pods: tuple[PodMeasurement, ...] = ()
    pairs: tuple[PairMeasurement, ...] = ()
    verdicts: tuple[NodeVerdict, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class CheckTask:
    """What one pod measures in one round of a check."""

    check: str
    round: int
    world_size: int
    """Processes that reduce together, those of both pods; 0: there is no partner."""
    rank: int
    """Of the pod's first process among them."""
    store_host: str
    store_port: int
    """Of the TCPStore that they meet at."""
    seconds: float
    """After which a measurement that has not ended has failed."""
    alone: bool = True
    """Whether to measure a multiplication, too."""


@dataclasses.dataclass(frozen=True, slots=True)
class CheckResult:
    """What came of a task; of the pod's slowest process."""

    check: str
    round: int
    device: str = ""
    matmul_seconds: float | None = None
    all_reduce_seconds: float | None = None
    matmul_problem: str = ""
    """Why it cannot compute; empty: it can."""
    all_reduce_problem: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class CheckRequest:
    """A launcher is about to join: shall its pod be checked before?"""

    member: Member
    store_host: str
    store_port: int
    result: CheckResult | None = None
    """Of the task that it was given last."""


@dataclasses.dataclass(frozen=True, slots=True)
class CheckReply:
    """What to do now."""

    action: str
    """``go`` (join), ``measure`` (the task, then ask with its result), ``wait`` (ask again)."""
    task: CheckTask | None = None
    pause: float = 0.0
    """Seconds before the next question."""
    reason: str = ""
