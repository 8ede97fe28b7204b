# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a check found of each pod; pure."""

from __future__ import annotations

from rover_kf.api.faults.node_check_messages import (
    FAULTY,
    OK,
    SLOW,
    UNCLEAR,
    NodeVerdict,
    PairMeasurement,
    PodMeasurement,
)
from rover_kf.elastic.node_check.measurements import (
    Assessment,
    CheckEvidence,
    assessments,
    partner,
)

SHOWN = 3
"""Pairs that a reason names."""


def pod_verdicts(evidence: CheckEvidence) -> tuple[NodeVerdict, ...]:
    """A verdict for each pod, in their order.

    Args:
        evidence: of the whole check; with the fleet's history where it is known.
    """
    found = assessments(evidence)
    guilty = {name for name, one in found.items() if one.proven_bad} | set(evidence.failing_pods())
    return tuple(
        _solo_verdict(pod, evidence) or _pair_verdict(pod, found[pod.pod], guilty)
        for pod in evidence.pods
    )


def _solo_verdict(pod: PodMeasurement, evidence: CheckEvidence) -> NodeVerdict | None:
    if pod.problem:
        return NodeVerdict(pod.pod, pod.node, FAULTY, pod.problem)
    if pod.absent:
        reason = "it gave no answer in time: its launcher has ended, or is stuck"
        return NodeVerdict(pod.pod, pod.node, UNCLEAR, reason)
    if not evidence.is_slow(pod):
        return None
    expected = evidence.baseline_matmul(pod.device) or 0.0
    taken = pod.matmul_seconds or 0.0
    reason = (
        f"a matmul takes {taken:.3g} s, {taken / expected:.1f} times the usual {expected:.3g} s"
    )
    alike = [one for one in evidence.pods if one.device == pod.device]
    if len(alike) > 1 and all(evidence.is_slow(one) for one in alike):
        # What all have in common is not a node's fault: a limit, a library, another kind of job.
        return NodeVerdict(pod.pod, pod.node, UNCLEAR, f"{reason} of other jobs; so do all here")
    return NodeVerdict(pod.pod, pod.node, SLOW, reason)


def _pair_verdict(pod: PodMeasurement, assessment: Assessment, guilty: set[str]) -> NodeVerdict:
    others = tuple(pair for pair in assessment.bad_pairs if partner(pair, pod.pod) not in guilty)
    if assessment.proven_bad:
        failed = any(pair.seconds is None for pair in assessment.bad_pairs)
        told = "; ".join(_short_repr(pair, pod.pod) for pair in assessment.bad_pairs[:SHOWN])
        return NodeVerdict(pod.pod, pod.node, FAULTY if failed else SLOW, f"all-reduce {told}")
    if assessment.proven_good or not others:
        return NodeVerdict(pod.pod, pod.node, OK)
    told = "; ".join(_short_repr(pair, pod.pod) for pair in others[:SHOWN])
    reason = f"all-reduce {told}; no third pod tells which of the two is why"
    return NodeVerdict(pod.pod, pod.node, UNCLEAR, reason)


def _short_repr(pair: PairMeasurement, name: str) -> str:
    other = partner(pair, name)
    if pair.seconds is None:
        return f"with {other} failed: {pair.problem}"
    return f"with {other} took {pair.seconds:.3g} s"
