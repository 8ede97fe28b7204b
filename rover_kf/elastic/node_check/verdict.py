# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The verdicts of a check, by its pairs and by earlier checks of other jobs.

A pair is bad if it failed or took several times the usual time. One good pair proves a pod good.
Bad pairs with two partners, one of them proven good, prove it bad: a bad pod makes all of its pairs
bad, so bad pods cannot convict a good one.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Iterable, Mapping, Sequence

from rover_kf.api.faults.node_check_messages import (
    FAULTY,
    OK,
    SLOW,
    UNCLEAR,
    NodeCheckReport,
    NodeVerdict,
    PairMeasurement,
    PodMeasurement,
)

FRESH_SECONDS = 86400.0
"""How old a pair may be that still tells about its nodes."""
MIN_PODS = 3
"""Pods whose figures make something usual."""


@dataclasses.dataclass(frozen=True, slots=True)
class FleetBaselines:
    """Usual figures, and what happened between nodes of late."""

    matmul_seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Usual seconds by device."""
    all_reduce_seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    pairs: tuple[PairMeasurement, ...] = ()
    """By names of nodes."""


def collect_baselines(checks: Iterable[NodeCheckReport], now: float) -> FleetBaselines:
    """Return the fleet as checks of any jobs show it, at a Unix time."""
    alone: dict[str, list[float]] = {}
    together: dict[str, list[float]] = {}
    recent: list[PairMeasurement] = []
    for check in checks:
        places = {pod.pod: pod for pod in check.pods}
        for pod in check.pods:
            if pod.matmul_seconds is not None:
                alone.setdefault(pod.device, []).append(pod.matmul_seconds)
        for pair in check.pairs:
            if pair.first not in places or pair.second not in places:
                continue
            one, other = places[pair.first], places[pair.second]
            if pair.seconds is not None and one.device == other.device:
                together.setdefault(one.device, []).append(pair.seconds)
            if one.node and other.node and now - check.at <= FRESH_SECONDS:
                recent.append(dataclasses.replace(pair, first=one.node, second=other.node))
    return FleetBaselines(_medians(alone), _medians(together), tuple(recent))


def _medians(figures: Mapping[str, list[float]]) -> dict[str, float]:
    return {
        device: statistics.median(seconds)
        for device, seconds in figures.items()
        if len(seconds) >= MIN_PODS
    }


MATMUL_RATIO = 2.0
"""More than so many times the usual seconds of a multiplication is slow."""
ALL_REDUCE_RATIO = 3.0
"""The same of an all-reduce, whose seconds scatter more,"""
ALL_REDUCE_NOISE = 0.005
"""and which is slow only if it takes so many seconds longer, too."""


@dataclasses.dataclass(frozen=True)
class CheckEvidence:
    """All that was measured."""

    pods: Sequence[PodMeasurement]
    pairs: Sequence[PairMeasurement]
    fleet: FleetBaselines = dataclasses.field(default_factory=FleetBaselines)
    previous: Sequence[PodMeasurement] = ()
    """Pods of the job as an earlier check found them, for one that comes later."""

    def failing_pods(self) -> dict[str, PodMeasurement]:
        """Pods that cannot compute, or compute slowly, by themselves, or are not there."""
        return {pod.pod: pod for pod in self.pods if pod.problem or pod.absent or self.is_slow(pod)}

    def is_slow(self, pod: PodMeasurement) -> bool:
        """Whether its multiplication takes several times what is usual."""
        expected = self.matmul_baselines.get(pod.device)
        taken = pod.matmul_seconds
        return taken is not None and expected is not None and taken > MATMUL_RATIO * expected

    @functools.cached_property
    def matmul_baselines(self) -> dict[str, float | None]:
        """Seconds that a multiplication should take, by device."""
        seen: dict[str, list[float]] = {}
        for pod in (*self.pods, *self.previous):
            if pod.matmul_seconds is not None:
                seen.setdefault(pod.device, []).append(pod.matmul_seconds)
        fleet = self.fleet.matmul_seconds
        return {device: baseline(figures, fleet.get(device)) for device, figures in seen.items()}

    def rated_pairs(self) -> list[tuple[PairMeasurement, bool]]:
        """Pairs of pods that compute well, and whether each was bad."""
        out = self.failing_pods()
        pairs = [pair for pair in self.pairs if pair.first not in out and pair.second not in out]
        expected = baseline(
            [pair.seconds for pair in pairs if pair.seconds is not None], self._fleet_baseline()
        )
        return [(pair, _is_bad(pair, expected)) for pair in pairs]

    def rated_past_pairs(self) -> list[tuple[PairMeasurement, bool]]:
        """Earlier pairs with a node that is not there now; by pods where they are."""
        pods = {pod.node: pod.pod for pod in self.pods if pod.node}
        found = []
        for pair in self.fleet.pairs:
            if pair.first in pods and pair.second in pods:
                continue  # they are paired now, or were not worth it
            first, second = (pods.get(node, node) for node in (pair.first, pair.second))
            found.append(dataclasses.replace(pair, first=first, second=second))
        expected = self._fleet_baseline()
        return [(pair, _is_bad(pair, expected)) for pair in found]

    def _fleet_baseline(self) -> float | None:
        """What an all-reduce takes elsewhere between devices like all of these."""
        devices = {pod.device for pod in self.pods}
        return self.fleet.all_reduce_seconds.get(devices.pop()) if len(devices) == 1 else None


@dataclasses.dataclass(frozen=True, slots=True)
class Assessment:
    """Where a pod stands among the pairs."""

    proven_good: bool
    """It was well with somebody."""
    bad_pairs: tuple[PairMeasurement, ...]
    proven_bad: bool


def assessments(evidence: CheckEvidence) -> dict[str, Assessment]:
    """Of each pod that computes well by itself."""
    here = {pod.pod for pod in evidence.pods}
    now, before = evidence.rated_pairs(), evidence.rated_past_pairs()
    proven = {name for pair, bad in now if not bad for name in _both(pair)}
    # That a node was well before says nothing of it now; of one that is not here it is all we know.
    proven |= {name for pair, bad in before if not bad for name in _both(pair)} - here
    wrong: dict[str, list[PairMeasurement]] = {
        name: [] for name in here - set(evidence.failing_pods())
    }
    for pair, bad in (*now, *before):
        for name in _both(pair):
            if bad and name in wrong:
                wrong[name].append(pair)
    return {
        name: Assessment(name in proven, tuple(pairs), _is_proven_bad(name, pairs, proven))
        for name, pairs in wrong.items()
    }


def baseline(seen: Sequence[float], fleet: float | None = None) -> float | None:
    """What figures should be like: a third of them may be better, and the fleet's if they are.

    Of two or three figures that is the least: one bad pod of two, or of three, spoils no more than
    all but one.
    """
    own = sorted(seen)[(len(seen) - 1) // 3] if seen else None
    if own is None or fleet is None:
        return fleet if own is None else own
    return min(own, fleet)


def partner(pair: PairMeasurement, name: str) -> str:
    """The other one."""
    return pair.second if pair.first == name else pair.first


def _both(pair: PairMeasurement) -> tuple[str, str]:
    return pair.first, pair.second


def _is_proven_bad(name: str, bad: Sequence[PairMeasurement], proven: set[str]) -> bool:
    if name in proven:
        return False
    others = {partner(pair, name) for pair in bad}
    return len(others) > 1 and bool(others & proven)


def _is_bad(pair: PairMeasurement, expected: float | None) -> bool:
    if pair.seconds is None:
        return True
    if expected is None:
        return False
    return pair.seconds > max(ALL_REDUCE_RATIO * expected, expected + ALL_REDUCE_NOISE)


SHOWN = 3
"""Pairs that a reason names."""


def pod_verdicts(evidence: CheckEvidence) -> tuple[NodeVerdict, ...]:
    """Return a verdict for each pod, in their order."""
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
    expected = evidence.matmul_baselines.get(pod.device) or 0.0
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
