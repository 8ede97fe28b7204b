# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the pairs so far say of each pod: who is proven to be well, who is not; pure.

A pair is bad if it failed or took several times what is usual. A pod is *proven* by one pair that
was well. It is *condemned* by bad pairs with two different partners, one of them proven: whoever is
bad makes all of its pairs bad, so no number of bad pods can condemn one that is well.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from rover_kf.api.faults.node_check_messages import Measured, PairMeasured
from rover_kf.elastic.node_check.fleet import Fleet

MATMUL_RATIO = 2.0
"""More than so many times the usual seconds of a multiplication is slow."""
ALL_REDUCE_RATIO = 3.0
"""The same of an all-reduce, whose seconds scatter more,"""
ALL_REDUCE_NOISE = 0.005
"""and which is slow only if it takes so many seconds longer, too."""


@dataclasses.dataclass(frozen=True)
class Evidence:
    """All that was measured."""

    pods: Sequence[Measured]
    pairs: Sequence[PairMeasured]
    fleet: Fleet = dataclasses.field(default_factory=Fleet)
    before: Sequence[Measured] = ()
    """Pods of the job as an earlier check found them, for one that comes later."""

    def usual_matmul(self, device: str) -> float | None:
        """Seconds that a multiplication should take."""
        return self._usual_matmul.get(device)

    def unable(self) -> dict[str, Measured]:
        """Pods that cannot compute, or compute slowly, by themselves, or are not there."""
        return {
            pod.pod: pod
            for pod in self.pods
            if pod.problem or pod.absent or self.computes_slowly(pod)
        }

    def computes_slowly(self, pod: Measured) -> bool:
        """Whether its multiplication takes several times what is usual."""
        expected = self.usual_matmul(pod.device)
        taken = pod.matmul_seconds
        return taken is not None and expected is not None and taken > MATMUL_RATIO * expected

    @functools.cached_property
    def _usual_matmul(self) -> dict[str, float | None]:
        seen: dict[str, list[float]] = {}
        for pod in (*self.pods, *self.before):
            if pod.matmul_seconds is not None:
                seen.setdefault(pod.device, []).append(pod.matmul_seconds)
        fleet = self.fleet.matmul_seconds
        return {device: usual(figures, fleet.get(device)) for device, figures in seen.items()}

    def told(self) -> list[tuple[PairMeasured, bool]]:
        """Pairs of pods that compute well, and whether each was bad."""
        out = self.unable()
        pairs = [pair for pair in self.pairs if pair.first not in out and pair.second not in out]
        expected = usual(
            [pair.seconds for pair in pairs if pair.seconds is not None], self._fleet()
        )
        return [(pair, _bad(pair, expected)) for pair in pairs]

    def told_before(self) -> list[tuple[PairMeasured, bool]]:
        """Earlier pairs with a node that is not there now; by pods where they are."""
        pods = {pod.node: pod.pod for pod in self.pods if pod.node}
        found = []
        for pair in self.fleet.pairs:
            if pair.first in pods and pair.second in pods:
                continue  # they are paired now, or were not worth it
            first, second = (pods.get(node, node) for node in (pair.first, pair.second))
            found.append(dataclasses.replace(pair, first=first, second=second))
        expected = self._fleet()
        return [(pair, _bad(pair, expected)) for pair in found]

    def _fleet(self) -> float | None:
        """What an all-reduce takes elsewhere between devices like all of these."""
        devices = {pod.device for pod in self.pods}
        return self.fleet.all_reduce_seconds.get(devices.pop()) if len(devices) == 1 else None


@dataclasses.dataclass(frozen=True, slots=True)
class Standing:
    """Where a pod stands among the pairs."""

    proven: bool
    """It was well with somebody."""
    bad: tuple[PairMeasured, ...]
    """Its bad pairs."""
    condemned: bool


def standings(evidence: Evidence) -> dict[str, Standing]:
    """Of each pod that computes well by itself."""
    here = {pod.pod for pod in evidence.pods}
    now, before = evidence.told(), evidence.told_before()
    proven = {name for pair, bad in now if not bad for name in _both(pair)}
    # That a node was well before says nothing of it now; of one that is not here it is all we know.
    proven |= {name for pair, bad in before if not bad for name in _both(pair)} - here
    wrong: dict[str, list[PairMeasured]] = {name: [] for name in here - set(evidence.unable())}
    for pair, bad in (*now, *before):
        for name in _both(pair):
            if bad and name in wrong:
                wrong[name].append(pair)
    return {
        name: Standing(name in proven, tuple(pairs), _condemned(name, pairs, proven))
        for name, pairs in wrong.items()
    }


def usual(seen: Sequence[float], fleet: float | None = None) -> float | None:
    """What figures should be like: a third of them may be better, and the fleet's if they are.

    Of two or three figures that is the least: one bad pod of two, or of three, spoils no more than
    all but one.
    """
    own = sorted(seen)[(len(seen) - 1) // 3] if seen else None
    if own is None or fleet is None:
        return fleet if own is None else own
    return min(own, fleet)


def partner(pair: PairMeasured, name: str) -> str:
    """The other one."""
    return pair.second if pair.first == name else pair.first


def _both(pair: PairMeasured) -> tuple[str, str]:
    return pair.first, pair.second


def _condemned(name: str, bad: Sequence[PairMeasured], proven: set[str]) -> bool:
    if name in proven:
        return False
    others = {partner(pair, name) for pair in bad}
    return len(others) > 1 and bool(others & proven)


def _bad(pair: PairMeasured, expected: float | None) -> bool:
    if pair.seconds is None:
        return True
    if expected is None:
        return False
    return pair.seconds > max(ALL_REDUCE_RATIO * expected, expected + ALL_REDUCE_NOISE)
