# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One function a quantity: the best source that has something to say, and its interval; pure.

Sources in order: the history of runs alike, a short profile, the manifest, a default.
"""

from __future__ import annotations

import dataclasses
import math

from rover_kf.api.decisions import Quantity
from rover_kf.api.records import RunRecord
from rover_kf.recommender import neighbours
from rover_kf.recommender.facts import JobFacts
from rover_kf.recommender.neighbours import Neighbour
from rover_kf.recommender.profile import Profile

MIB, GIB = 1 << 20, 1 << 30
DEFAULT_MEMORY, DEFAULT_CPU, DEFAULT_ARENA = 2 * GIB, 1.0, GIB
SLOTS = 2
"""A rank's own snapshots in the arena at one time."""
CPU_MARGIN, ARENA_MARGIN, PROFILE_MARGIN = 1.15, 1.1, 1.25
PRIOR_FAILURE_SECONDS = 86400.0
"""One failure a day is assumed beside what was seen."""
MOST_STEPS = 10_000
OUT_OF_MEMORY = ("out_of_memory", "OOMKilled", "killed for memory")


@dataclasses.dataclass(frozen=True, slots=True)
class Sources:
    """Everything that is known before the run."""

    facts: JobFacts
    runs: tuple[Neighbour, ...]
    profile: Profile | None = None

    def succeeded(self) -> tuple[Neighbour, ...]:
        """Runs alike that ended well."""
        return tuple(item for item in self.runs if item.record.outcome == "succeeded")

    def layout(self) -> Neighbour | None:
        """The most alike run of which it is known whether its state was sharded."""
        return next((item for item in self.runs if item.record.replicated is not None), None)

    def kept(self) -> float:
        """What each rank's pod keeps of other pods' sharded state, in slots: one, or a parity."""
        if not self.facts.parity_group:
            return 1.0
        pods = self.facts.masters + int(self.facts.requested["replicas"])
        return 1.0 / (max(min(self.facts.parity_group, pods), 2) - 1)

    def slots(self) -> float:
        """Snapshots in the arena for each rank, what is kept of other pods' among them."""
        layout = self.layout()
        return SLOTS + (0.0 if layout is None or layout.record.replicated else self.kept())


def memory(sources: Sources) -> Quantity:
    """Bytes of the trainer container."""
    peaks = neighbours.samples(sources.runs, _needed_memory)
    raised = neighbours.samples(sources.runs, lambda run: run.memory_raised or None)
    if raised and not peaks:
        target = max(sample.value for sample in raised)
        why = f"a run alike was killed with less and went on with {target / MIB:.0f} MiB"
        return _quantity("memory", target, (target / 2, target * 1.25), raised, why)
    if peaks:
        worst = max(sample.value for sample in peaks)
        target = _mib(worst + max(0.2 * worst, 2 * neighbours.spread(peaks)))
        target = max([target, *(sample.value for sample in raised)])
        why = f"the worst of {len(peaks)} runs alike needed {worst / MIB:.0f} MiB, and a margin"
        low, high = worst, target * 1.25
        return _quantity("memory", target, (low, high), peaks, why)
    if sources.profile is not None and sources.profile.peak_memory:
        peak = sources.profile.peak_memory
        target = _mib(peak * PROFILE_MARGIN)
        why = f"a short run of the command took {peak / MIB:.0f} MiB at its peak, and a margin"
        return _single("memory", target, (peak, target * 1.6), "profile", why)
    stated = sources.facts.requested.get("memory")
    if stated:
        asked = [item for item in sources.succeeded() if _asked(item.record, "memory") == stated]
        count = sum(item.weight for item in asked)
        why = "the manifest asks for it; use was not measured"
        if asked:
            why = f"the manifest asks for it and {len(asked)} runs alike succeeded with it"
        return Quantity(
            "memory", stated, 0.5 * stated, 1.5 * stated, "bytes", "manifest", count, why
        )
    why = "nothing is known of the job: state a request or run a profile"
    return _single(
        "memory", DEFAULT_MEMORY, (DEFAULT_MEMORY / 4, DEFAULT_MEMORY * 4), "default", why
    )


def cpu(sources: Sources) -> Quantity:
    """Cores of the trainer container."""
    used = neighbours.samples(sources.succeeded(), lambda run: run.peak.get("cpu"))
    if used:
        target = CPU_MARGIN * neighbours.quantile(used, 0.9)
        low, high = neighbours.interval(used, target)
        why = f"nine in ten of {len(used)} runs alike used at most that, less 15 %"
        return _quantity("cpu", round(target, 2), (low, high), used, why)
    if sources.profile is not None and sources.profile.cores:
        cores = sources.profile.cores
        target = round(max(0.25, cores * CPU_MARGIN), 2)
        why = f"a short run of the command kept {cores:.2f} cores busy"
        return _single("cpu", target, (0.75 * target, 1.5 * target), "profile", why)
    stated = sources.facts.requested.get("cpu")
    if stated:
        why = "the manifest asks for it; use was not measured"
        return _single("cpu", stated, (0.5 * stated, 1.5 * stated), "manifest", why)
    why = "nothing is known of the job: state a request or run a profile"
    return _single("cpu", DEFAULT_CPU, (0.5, 4.0), "default", why)


def arena(sources: Sources) -> Quantity:
    """Bytes of all snapshots of a pod in memory."""
    ranks, slots = sources.facts.signature.processes_per_node, sources.slots()
    sizes = neighbours.samples(sources.runs, lambda run: run.snapshot_bytes)
    measured = sources.profile.snapshot_bytes if sources.profile is not None else None
    if sizes or measured:
        largest = max([sample.value for sample in sizes] or [float(measured or 0)])
        target = _mib(largest * slots * ranks * ARENA_MARGIN)
        size = f"{largest / MIB:.1f} MiB"
        why = f"{slots:.3g} slots of {size} for each of {ranks} processes, and 10 %"
        if sizes:
            low = largest * slots * ranks
            return _quantity("arena", target, (low, target * 1.25), sizes, why)
        return _single("arena", target, (largest * slots * ranks, target * 1.5), "profile", why)
    if sources.facts.arena_bytes:
        stated = sources.facts.arena_bytes
        return _single("arena", stated, (stated, stated), "manifest", "the annotation says so")
    given = sources.facts.requested.get("memory")
    if given:
        half = _mib(given / 2)
        why = "half of the trainer's memory, until a run has shown the size of its snapshots"
        return _single("arena", half, (half / 8, half * 2), "formula", why)
    why = "nothing is known of the state's size; the first checkpoint will tell"
    return _single("arena", DEFAULT_ARENA, (DEFAULT_ARENA / 8, DEFAULT_ARENA * 4), "default", why)


def replica(sources: Sources, arena: Quantity) -> Quantity:
    """Bytes of the arena in which a pod keeps another pod's state.

    Args:
        sources: what is known.
        arena: the whole, as recommended.
    """
    layout, slots = sources.layout(), sources.slots()
    if layout is None:
        why = (
            f"not known yet: nothing where all ranks hold the same (DDP); {_room(sources)} for "
            "each process, beside the arena's two, where state is sharded (FSDP, tensor parallel)"
        )
        most = sources.kept() * arena.target / SLOTS
        return _single("replica", 0.0, (0.0, most), "default", why)
    if layout.record.replicated:
        why = "a run alike held all of its state in every rank: nothing is copied to other pods"
        return Quantity("replica", 0.0, 0.0, 0.0, "bytes", "history", layout.weight, why)
    kept = sources.kept()
    target, low, high = (kept * n / slots for n in (arena.target, arena.lower, arena.upper))
    why = (
        f"one of the arena's {slots:.3g} slots for each process holds a rank of another pod: a run "
        "alike had sharded state, which is lost with its pod otherwise"
    )
    if sources.facts.parity_group:
        high *= 2
        why = (
            f"{kept:.3g} of a slot for each process is its part of the parity of its group: a run "
            "alike had sharded state, which is lost with its pod otherwise. As much again, in the "
            "annotation checkpoint.arena, lets the part before stay while the next one is made"
        )
    return Quantity("replica", target, low, high, "bytes", "history", layout.weight, why)


def _room(sources: Sources) -> str:
    kept = sources.kept()
    return f"{kept:.3g} of a slot (parity)" if sources.facts.parity_group else "a third slot"


def checkpoint_every(sources: Sources) -> Quantity:
    """Steps between two saves, by Young and Daly: sqrt(2 * cost of a save * time between failures).

    The time between failures is seen over all runs alike, with one failure a day added as a prior.
    """
    facts = sources.facts
    costs = neighbours.samples(sources.runs, lambda run: run.save_seconds)
    steps = neighbours.samples(sources.runs, step_seconds)
    if costs and steps:
        seen = sum(item.record.updated_at - item.record.started_at for item in sources.runs)
        failures = sum(item.record.restarts for item in sources.runs)
        between = (seen + PRIOR_FAILURE_SECONDS) / (failures + 1)
        cost, step = neighbours.quantile(costs, 0.5), neighbours.quantile(steps, 0.5)
        seconds = math.sqrt(2 * cost * between)
        target = float(min(max(1, round(seconds / step)), MOST_STEPS))
        why = (
            f"a save blocks {cost * 1000:.1f} ms and a failure comes every {between / 3600:.1f} h: "
            f"least is lost with a save every {seconds:.1f} s, at {step:.3f} s a step"
        )
        low, high = max(1.0, target / 2), target * 2
        return _quantity("checkpoint_every", target, (low, high), costs, why, basis="formula")
    every = float(facts.checkpoint_every)
    basis = "manifest" if facts.states_every else "default"
    why = "the annotation says so; the cost of a save was not measured yet"
    if not facts.states_every:
        why = "the default, until a run has shown what a save costs"
    return _single("checkpoint_every", every, (max(1.0, every / 5), every * 5), basis, why)


def step_seconds(run: RunRecord) -> float | None:
    """Median step of the run's newest window; None if it never trained steadily."""
    return run.windows[-1].step_seconds if run.windows else None


def _needed_memory(run: RunRecord) -> float | None:
    """What a run needed: its peak, and more than it had if that was not enough."""
    peak = run.peak.get("memory")
    asked = run.memory_raised or _asked(run, "memory")
    if asked and any(word in run.verdict for word in OUT_OF_MEMORY):
        return max(peak or 0.0, 1.2 * asked)
    return peak


def _asked(run: RunRecord, name: str) -> float | None:
    return run.requested.get(name)


def _mib(count: float) -> float:
    return float(math.ceil(round(count / MIB, 6)) * MIB)


UNITS = {
    "memory": "bytes",
    "arena": "bytes",
    "replica": "bytes",
    "cpu": "cores",
    "checkpoint_every": "steps",
}


def _quantity(
    name: str,
    target: float,
    bounds: tuple[float, float],
    found: tuple[neighbours.Sample, ...],
    why: str,
    *,
    basis: str = "history",
) -> Quantity:
    count = neighbours.effective(found)
    return Quantity(name, target, *bounds, UNITS[name], basis, count, why)


def _single(
    name: str, target: float, bounds: tuple[float, float], basis: str, why: str
) -> Quantity:
    """A number with one source that is no run: a profile counts as one sample, a guess as none."""
    count = 1.0 if basis == "profile" else 0.0
    return Quantity(name, target, *bounds, UNITS[name], basis, count, why)
