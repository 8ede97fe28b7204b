# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What is known of a process or a pod that has ended, and what it was taken for."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class TrainingError:
    """The exception that ended a training process, as it wrote it down itself."""

    type: str
    bases: tuple[str, ...]
    """Names of the classes that it derives from, itself first."""
    message: str
    traceback: str
    raised_at: float = 0.0
    """Unix seconds."""
    causes: tuple[str, ...] = ()
    """The same names of the exceptions that led to it (``raise … from``, or while handling)."""
    chain: tuple[str, ...] = ()
    """What those said, as ``Type: message``."""


@dataclasses.dataclass(frozen=True, slots=True)
class ExitEvidence:
    """A launcher fills in the first part, a reconciler the second."""

    exit_code: int | None = None
    """Of a training process or of a container; negative: the signal's number."""
    oom_kills: int = 0
    """By how much the control group's counter grew while the process died."""
    error: TrainingError | None = None
    tail: tuple[str, ...] = ()
    """What the process wrote on stderr last, by lines."""

    container_reason: str = ""
    """Why the kubelet says a container has ended: OOMKilled, Error, …"""
    pod_reasons: tuple[str, ...] = ()
    """Why a pod has ended or will: its status' reason and that of its DisruptionTarget."""
    message: str = ""
    """What Kubernetes says beside the reason."""


@dataclasses.dataclass(frozen=True, slots=True)
class FailureVerdict:
    """What an end means; api.membership.Failure has the same fields, with who and where."""

    kind: str
    scope: str
    action: str
    consumes_budget: bool
    reason: str
    consequence: bool = False
    """Whether another process's end explains this one."""
    signature: str = ""
    """The same for the same error in the same place; empty where a repetition proves nothing."""
