# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Evidence in, verdict out; and of several failures, the one that caused the others. Pure."""

from __future__ import annotations

import hashlib
import re
import signal
from collections.abc import Sequence

from rover_kf.api.membership import Failure, FailureVerdict
from rover_kf.elastic.failures import pods, processes
from rover_kf.elastic.failures.rule import SCOPES, ExitEvidence, Rule, TrainingError

CLOCKS_DIFFER = 1.0
"""Seconds; of two failures closer than that on different nodes nobody knows which was first."""
_TRACEBACK_LINES = 12
_LONGEST_REASON = 600
_LONGEST_TRACEBACK = 800


def classify(evidence: ExitEvidence) -> FailureVerdict:
    """Say what the end of a training process means."""
    rule = next(rule for rule in processes.RULES if rule.matches(evidence))
    return FailureVerdict(
        rule.kind,
        rule.scope,
        rule.action,
        _reason(rule, evidence),
        rule.consumes_budget,
        consequence=rule.consequence,
        signature=_signature(evidence, rule) if rule.permanent_if_repeated else "",
    )


def classify_pod(evidence: ExitEvidence) -> FailureVerdict | None:
    """Say what a pod's or container's end means; None where Kubernetes gives no reason for it."""
    rule = next((rule for rule in pods.RULES if rule.matches(evidence)), None)
    if rule is None:
        return None
    said = f" ({evidence.message})" if evidence.message else ""
    reason = _truncate(f"{rule.message}{said}")
    return FailureVerdict(rule.kind, rule.scope, rule.action, reason, rule.consumes_budget)


def root_cause(failures: Sequence[Failure]) -> Failure:
    """The failure that explains the others: which rank was first.

    A rank that died of itself comes before those whose collective failed for it, whenever they
    tell of it. Among such, the earliest; of those too close for different nodes' clocks the one
    whose damage reaches furthest, then the earlier one, then the lower rank.
    """
    causes = [one for one in failures if not one.consequence] or list(failures)
    earliest = min(one.observed_at for one in causes)
    near = [one for one in causes if one.observed_at - earliest <= CLOCKS_DIFFER]
    return min(
        near, key=lambda failure: (-_scope_rank(failure.scope), failure.observed_at, failure.rank)
    )


def _scope_rank(scope: str) -> int:
    return SCOPES.index(scope) if scope in SCOPES else 0


def _reason(rule: Rule, evidence: ExitEvidence) -> str:
    error, line = evidence.error, rule.matching_line(evidence)
    if error is not None and rule.permanent_if_repeated:
        return _traceback_tail(error.traceback) or f"{error.type}: {error.message}"
    if error is not None:
        return _truncate(f"{rule.message}: {error.type}: {error.message}")
    ended = _exit_text(evidence.exit_code or 0)
    return _truncate(f"{ended}; {rule.message}" + (f": {line.strip()}" if line else ""))


def _traceback_tail(traceback: str) -> str:
    """Its last lines, but for those that only underline: of a long one the end says most."""
    lines = [line for line in traceback.strip().splitlines() if line.strip(" ~^")]
    tail = "\n".join(lines[-_TRACEBACK_LINES:])
    if len(tail) <= _LONGEST_TRACEBACK:
        return tail
    cut = tail[-_LONGEST_TRACEBACK:]
    return cut.partition("\n")[2] or cut


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    known = -code in set(signal.Signals)
    return f"ended by {signal.Signals(-code).name if known else f'signal {-code}'}"


def _signature(evidence: ExitEvidence, rule: Rule) -> str:
    """The same for the same error raised at the same place, whatever numbers it names."""
    error = evidence.error
    said = rule.matching_line(evidence) if error is None else _error_location(error)
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def _error_location(error: TrainingError) -> str:
    frames = [line for line in error.traceback.splitlines() if line.startswith('  File "')]
    return "\n".join([*frames, error.type, re.sub(r"\d+", "#", error.message)])


def _truncate(text: str) -> str:
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1] + "…"
