# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the death of a training process means: kind, scope, action, reason.

The launcher gathers the evidence and asks; ``classify`` is pure. A user's error ends the job at
once with its traceback, a lost peer costs nothing, everything else spends the budget of restarts.
"""

from __future__ import annotations

import dataclasses
import signal

ORDINARY_TAIL = 12
"""Lines of a traceback that go into a reason."""

USER_ERRORS = frozenset(
    {
        "ImportError",
        "SyntaxError",
        "NameError",
        "TypeError",
        "AssertionError",
        "AttributeError",
        "NotImplementedError",
        "InputError",
        "UnsupportedState",
        "ArenaTooSmall",
    }
)
"""Names of exception classes (or of their bases) that no restart can cure."""

MEMORY_ERRORS = frozenset({"MemoryError", "OutOfMemoryError"})

PEER_ERRORS = frozenset({"DistNetworkError", "DistStoreError", "DistBackendError"})
"""torch.distributed's own classes for a connection that broke."""

PEER_PHRASES = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "gloo",
    "nccl",
    "recvvalue failed",
    "sendbytes failed",
    "socket timeout",
    "wait timeout",
    "timed out waiting",
    "process group",
    "tcpstore",
)
"""What a survivor of another process's death says, in lower case."""

CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE})


@dataclasses.dataclass(frozen=True, slots=True)
class TrainingError:
    """The exception that ended a training process, as it wrote it down itself."""

    type: str
    bases: tuple[str, ...]
    """Names of the classes that it derives from, itself first."""
    message: str
    traceback: str
    at: float = 0.0
    """Unix seconds."""


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """What a launcher knows of a process that has ended."""

    exit_code: int
    """Negative: the signal's number."""
    out_of_memory_kills: int = 0
    """By how much the control group's counter grew while the process died."""
    error: TrainingError | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """The same fields as api.membership.Failure, without who and where."""

    kind: str
    scope: str
    action: str
    counts: bool
    reason: str


def classify(evidence: Evidence) -> Verdict:
    """Say what a death means."""
    if evidence.out_of_memory_kills > 0 and evidence.exit_code == -signal.SIGKILL:
        reason = "killed by the kernel: the container's memory limit was reached"
        return Verdict("out_of_memory", "process", "restart", counts=True, reason=reason)
    if evidence.exit_code < 0:
        return _by_signal(-evidence.exit_code)
    if evidence.error is not None:
        return _by_exception(evidence.error)
    reason = f"ended with exit code {evidence.exit_code} and left no exception"
    return Verdict("error", "process", "restart", counts=True, reason=reason)


def _by_signal(number: int) -> Verdict:
    known = number in set(signal.Signals)
    name = signal.Signals(number).name if known else f"signal {number}"
    if number in CRASHES:
        reason = f"crashed with {name}"
        return Verdict("crashed", "process", "restart", counts=True, reason=reason)
    reason = f"killed by {name}"
    return Verdict("process_killed", "process", "restart", counts=True, reason=reason)


def _by_exception(error: TrainingError) -> Verdict:
    names = {error.type, *error.bases}
    said = f"{error.type}: {error.message}"
    if names & MEMORY_ERRORS:
        return Verdict("out_of_memory", "process", "restart", counts=True, reason=said)
    if names & PEER_ERRORS or _speaks_of_peer(error):
        reason = f"a peer was lost: {said}"
        return Verdict("peer_lost", "process", "restart", counts=False, reason=_bounded(reason))
    if names & USER_ERRORS:
        tail = "\n".join(error.traceback.strip().splitlines()[-ORDINARY_TAIL:])
        return Verdict("user_error", "job", "fail_job", counts=True, reason=tail or said)
    return Verdict("error", "process", "restart", counts=True, reason=_bounded(said))


def _speaks_of_peer(error: TrainingError) -> bool:
    if not {"RuntimeError", "ConnectionError", "TimeoutError"} & set(error.bases):
        return False
    return any(phrase in error.message.lower() for phrase in PEER_PHRASES)


def _bounded(text: str, longest: int = 600) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
