# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A node check from its first request to its verdicts, as a state machine.

Requests are answered at once. A lost, hung or late pod costs the others at most one round's time,
and takes no further part.

First everybody has a partner. Then only pods meet again that are not proven good, with a proven one
if there is one. So one round suffices where all are good, and a third one finds one bad pod of any
number.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from rover_kf.api.faults.node_check_messages import (
    OK,
    CheckReply,
    CheckRequest,
    CheckResult,
    CheckTask,
    NodeCheckReport,
    PairMeasurement,
    PodMeasurement,
)
from rover_kf.elastic.node_check.verdict import CheckEvidence, assessments, pod_verdicts

Pair = tuple[str, str]

MAX_ROUNDS = 5
"""After so many what is not known stays so: every one may take a whole time-out."""
FEW = 3
"""Of so many pods all pairs are made: which of two figures is usual, only a third one tells."""


def next_pairs(evidence: CheckEvidence, rounds: int) -> tuple[Pair, ...]:
    """Return the pairs of the round after so many; none if nothing more is to be learnt."""
    if rounds >= MAX_ROUNDS:
        return ()
    found = assessments(evidence)
    names = [pod.pod for pod in evidence.pods if pod.pod in found]
    met = {frozenset((pair.first, pair.second)) for pair in evidence.pairs}
    unsettled = [n for n in names if not (found[n].proven_good or found[n].proven_bad)]
    if len(names) <= FEW:
        unsettled = names
    # Who has met nobody, then who has a bad pair: a partner that is proven decides about them.
    paired = frozenset().union(*met)
    unsettled.sort(key=lambda name: (name in paired, not found[name].bad_pairs))
    partners = sorted(names, key=lambda name: not found[name].proven_good)
    order = {name: index for index, name in enumerate(names)}
    made: list[Pair] = []
    taken: set[str] = set()
    first = 0
    for name in unsettled:
        while first < len(partners) and partners[first] in taken:
            first += 1
        other = None if name in taken else _next_partner(name, partners, first, taken, met)
        if other is not None:
            taken |= {name, other}
            low, high = sorted((name, other), key=order.__getitem__)
            made.append((low, high))
    return tuple(made)


def _next_partner(
    name: str, partners: Sequence[str], first: int, taken: set[str], met: set[frozenset[str]]
) -> str | None:
    free = (one for one in itertools.islice(partners, first, None) if one not in taken)
    return next((one for one in free if one != name and frozenset((name, one)) not in met), None)


PAUSE_SECONDS = 0.05
"""Between two questions of a pod; of a large job longer, so that they stay few,"""
MOST_QUESTIONS = 2000.0
"""a second."""
MARGIN_SECONDS = 8.0
"""Of a round without its measurements: forks, and connections retried for 7 s."""
MOST_TIMES = 3
"""That a pod which computes slowly is measured, the others at rest by then; its best counts."""


@dataclasses.dataclass(frozen=True, slots=True)
class CheckLimits:
    """Durations in seconds."""

    gather: float = 10.0
    """How long the check waits for further pods after the last that came."""
    measure: float = 20.0
    """How long a measurement may take."""


@dataclasses.dataclass(slots=True)
class CheckedPod:
    """A pod that takes part."""

    request: CheckRequest
    measurement: PodMeasurement
    task: CheckTask | None = None
    """That it was given and has not told the result of."""
    result: CheckResult | None = None
    """Of this round."""
    attempts: int = 0
    """That it was measured by itself."""


class NodeCheck:
    """A check of the nodes of one job, with a unique name."""

    def __init__(
        self,
        name: str,
        expected: int,
        limits: CheckLimits,
        now: float,
        *,
        previous: Sequence[PodMeasurement] = (),
    ) -> None:
        self.name, self.limits = name, limits
        self._previous = previous
        self.expected = expected
        self.result: NodeCheckReport | None = None
        """Once it has ended; ``at`` is in the clock of ``now``."""
        self._pods: dict[str, CheckedPod] = {}
        self._last_joined = now
        self._pairs: list[PairMeasurement] = []
        self._round = 0
        """0: it gathers."""
        self.current_pairs: tuple[Pair, ...] = ()
        """Pods that measure together now."""
        self._deadline = 0.0
        self._open_tasks = 0
        """Tasks whose results are not told."""

    @property
    def pods(self) -> tuple[str, ...]:
        """Who takes part."""
        return tuple(self._pods)

    @property
    def launchers(self) -> set[tuple[str, str]]:
        """The same, with their incarnations."""
        members = (place.request.member for place in self._pods.values())
        return {(member.pod, member.incarnation) for member in members}

    def handle_request(self, request: CheckRequest, now: float) -> CheckReply:
        """A launcher asks, perhaps with a result."""
        pod = request.member.pod
        place = self._pods.get(pod)
        if self._round == 0 and (place is None or place.request.member != request.member):
            measured = PodMeasurement(pod, request.member.node)
            place = self._pods[pod] = CheckedPod(request, measured)
            self._last_joined = now
        self._record_result(place, request)
        self.advance(now)
        if place is None or place.request.member != request.member or self.result:
            return CheckReply("go")
        if place.task is not None:
            return CheckReply("measure", place.task)
        return CheckReply("wait", pause=max(PAUSE_SECONDS, len(self._pods) / MOST_QUESTIONS))

    def advance(self, now: float) -> None:
        """Time has passed."""
        if self.result is not None:
            return
        if self._round == 0:
            everybody = len(self._pods) >= self.expected
            if self._pods and (everybody or now - self._last_joined >= self.limits.gather):
                self._open_round(now)
        elif now >= self._deadline or not self._open_tasks:
            self._close_round()
            self._open_round(now)

    def _record_result(self, checked: CheckedPod | None, request: CheckRequest) -> None:
        result = request.result
        if checked is None or checked.task is None or result is None:
            return
        if (result.check, result.round) == (checked.task.check, checked.task.round):
            checked.result, checked.task = result, None
            self._open_tasks -= 1

    def _open_round(self, now: float) -> None:
        if self._round == 0:
            by_rank = sorted(self._pods.items(), key=lambda item: item[1].request.member.node_rank)
            self._pods = dict(by_rank)
        measured = [place.measurement for place in self._pods.values()]
        evidence = CheckEvidence(measured, self._pairs, previous=self._previous)
        self.current_pairs = next_pairs(evidence, self._round)
        alone = [place for place in self._pods.values() if self._needs_retest(place, evidence)]
        if not self.current_pairs and not alone:
            seconds = now - self._last_joined
            told = tuple(evidence.pods), tuple(self._pairs)
            self.result = NodeCheckReport(now, seconds, *told, pod_verdicts(evidence))
            return
        self._round += 1
        self._deadline = now + self.limits.measure + MARGIN_SECONDS
        for first, second in self.current_pairs:
            self._assign(self._pods[first], self._pods[second])
        for place in alone:
            place.task = place.task or self._make_task(place, place, 0, 0)
            place.task = dataclasses.replace(place.task, alone=True)
            place.attempts += 1
        self._open_tasks = sum(place.task is not None for place in self._pods.values())

    def _needs_retest(self, checked: CheckedPod, evidence: CheckEvidence) -> bool:
        """Whether to measure it by itself: at first, and where it may have been bad luck."""
        if checked.attempts == 0:
            return self._round == 0
        slow = not checked.measurement.problem and evidence.is_slow(checked.measurement)
        return slow and checked.attempts < MOST_TIMES

    def _assign(self, first: CheckedPod, second: CheckedPod) -> None:
        size = first.request.member.processes + second.request.member.processes
        first.task = self._make_task(first, first, size, 0)
        second.task = self._make_task(second, first, size, first.request.member.processes)

    def _make_task(self, checked: CheckedPod, host: CheckedPod, size: int, rank: int) -> CheckTask:
        checked.result = None
        return CheckTask(
            check=self.name,
            round=self._round,
            world_size=size,
            rank=rank,
            store_host=host.request.store_host,
            store_port=host.request.store_port,
            seconds=self.limits.measure,
            alone=False,
        )

    def _close_round(self) -> None:
        for place in self._pods.values():
            if place.task is not None:
                place.measurement = dataclasses.replace(place.measurement, absent=True)
            elif place.result is not None:
                place.measurement = _merge_result(place.measurement, place.result)
        for first, second in self.current_pairs:
            self._pairs.append(_combine_pair(self._pods[first], self._pods[second]))
        for place in self._pods.values():
            place.task = None


def _merge_result(measurement: PodMeasurement, result: CheckResult) -> PodMeasurement:
    """What is known of a pod by itself, and a result that may hold no more of it."""
    times = [measurement.matmul_seconds, result.matmul_seconds]
    return dataclasses.replace(
        measurement,
        device=measurement.device or result.device,
        matmul_seconds=min((one for one in times if one is not None), default=None),
        problem=measurement.problem or result.matmul_problem,
    )


def _combine_pair(first: CheckedPod, second: CheckedPod) -> PairMeasurement:
    """What a pair has measured; the longer time counts, since one may wait for the other before."""
    pods = (first.measurement.pod, second.measurement.pod)
    results = [place.result for place in (first, second) if place.result]
    problems = [result.all_reduce_problem for result in results if result.all_reduce_problem]
    seconds = [one.all_reduce_seconds for one in results if one.all_reduce_seconds is not None]
    if problems or len(seconds) < len(pods):
        return PairMeasurement(
            *pods, None, problems[0] if problems else "one of them gave no answer"
        )
    return PairMeasurement(*pods, max(seconds))


def truncate(check: NodeCheckReport, max_pods: int) -> NodeCheckReport:
    """At most so many of its pods, first those that are not well, and what was between them."""
    if len(check.pods) <= max_pods:
        return check
    bad = {one.pod for one in check.verdicts if one.verdict != OK}
    chosen = sorted(check.pods, key=lambda pod: pod.pod not in bad)[:max_pods]
    kept = {pod.pod for pod in chosen}
    return dataclasses.replace(
        check,
        pods=tuple(pod for pod in check.pods if pod.pod in kept),
        pairs=tuple(pair for pair in check.pairs if {pair.first, pair.second} <= kept),
        verdicts=tuple(one for one in check.verdicts if one.pod in kept),
    )


def summarize(check: NodeCheckReport) -> str:
    """One line about a check for people."""
    alone = [pod.matmul_seconds for pod in check.pods if pod.matmul_seconds is not None]
    together = [pair.seconds for pair in check.pairs if pair.seconds is not None]
    bad = sum(one.verdict != OK for one in check.verdicts)
    parts = [f"{len(check.pods)} pods checked in {check.seconds:.2f} s"]
    parts += [f"a matmul takes {_span(alone)}"] if alone else []
    parts += [f"an all-reduce of two {_span(together)}"] if together else []
    return f"{', '.join(parts)}: {f'{bad} of them not well' if bad else 'all are well'}"


def _span(seconds: Sequence[float]) -> str:
    low, high = (f"{figure:.3g}" for figure in (min(seconds), max(seconds)))
    return f"{low} s" if low == high else f"{low} to {high} s"
