# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Parameter servers of a TFJob: how many, their cores, memory, and what others would bring; pure.

The law of ``scaling.server_law`` is fitted to the setups that runs of the same command have had: a
run with other numbers, or one whose servers were given more cores while it ran, is another setup.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator

from rover_kf.api.decisions import Quantity
from rover_kf.api.records import RunRecord, ServerSetup
from rover_kf.recommender import gpu_memory
from rover_kf.recommender.size_evidence import FAIR, MIB, SizeEvidence, quantify
from rover_kf.scaling import ps_model
from rover_kf.scaling.policy import AutoscalingPolicy
from rover_kf.scaling.ps_model import PsModel

CORES = (0.5, 0.75, 1.0, 1.5, 2.0)
"""Of what a server has now, that are looked at."""
RUNTIME = 600 << 20
"""Bytes of a server's TensorFlow, without variables."""
MARGIN = 1.25


@dataclasses.dataclass(frozen=True, slots=True)
class SetupForecast:
    """What another setup is expected to bring."""

    description: str
    steps_per_second: float
    lower: float
    upper: float
    gain: float
    """Over the present setup."""


def fit_model(records: Iterable[RunRecord]) -> PsModel | None:
    """The law of runs of one command; None while they have had one setup alone."""
    ordered = sorted(records, key=lambda record: record.updated_at)
    return ps_model.fit(
        [row for record in ordered for row in ps_model.median_rows(record.servers, record.windows)]
    )


def recommend_sizes(evidence: SizeEvidence, policy: AutoscalingPolicy) -> tuple[Quantity, ...]:
    """Replicas, servers and their cores with the least cost, and a server's memory."""
    now = evidence.job.setup
    if now is None:
        return ()
    memory = _memory(evidence, now)
    law = fit_model(evidence.runs_of_command())
    chosen = _from_manifest(now) if law is None else _choose(evidence, law, now, policy)
    return (*chosen, memory) if memory is not None else chosen


def forecast_setups(law: PsModel, now: ServerSetup) -> tuple[SetupForecast, ...]:
    """What one worker or server more, and twice the cores of each, would bring."""
    present = law.steps_per_second(now)
    servers, workers = 2 * now.server_cores, 2 * now.worker_cores
    others = (
        (f"{now.workers + 1} workers", dataclasses.replace(now, workers=now.workers + 1)),
        (f"{now.servers + 1} PS", dataclasses.replace(now, servers=now.servers + 1)),
        (f"PS of {servers:g} cores", dataclasses.replace(now, server_cores=servers)),
        (f"workers of {workers:g} cores", dataclasses.replace(now, worker_cores=workers)),
    )
    return tuple(
        SetupForecast(
            what, rate := law.steps_per_second(other), *law.interval(other), rate / present
        )
        for what, other in others
        if law.reaches(other)
    )


def _choose(
    evidence: SizeEvidence, law: PsModel, now: ServerSetup, policy: AutoscalingPolicy
) -> tuple[Quantity, ...]:
    costs = {
        setup: _cost(law, setup, now, evidence.job.masters + policy.value_of_time)
        for setup in _candidate_setups(law, now, policy)
    }
    if not costs:
        return _from_manifest(now)
    best = min(costs, key=lambda setup: costs[setup])
    fair = [setup for setup, cost in costs.items() if cost <= FAIR * costs[best]]
    rate, (low, high) = law.steps_per_second(best), law.interval(best)
    why = (
        f"{best.workers} workers and {best.servers} PS of {best.server_cores:g} cores are the "
        f"cheapest for the time they take: {rate:.3g} ({low:.3g}-{high:.3g}) steps/s, by "
        f"{len(law.rows)} setups that were measured"
    )
    count = float(len(law.rows))

    def fair_size(name: str, field: str) -> Quantity:
        values = [float(getattr(setup, field)) for setup in fair]
        target = float(getattr(best, field))
        bounds = (min(values), max(values))
        return quantify(name, target, bounds, "history", why, samples=count)

    return (
        fair_size("replicas", "workers"),
        fair_size("servers", "servers"),
        fair_size("server_cpu", "server_cores"),
    )


def _cost(law: PsModel, setup: ServerSetup, now: ServerSetup, beside: float) -> float:
    """Of a step, in worker-seconds: a server counts by its cores."""
    servers = setup.servers * setup.server_cores / now.worker_cores
    return (setup.workers + servers + beside) / law.steps_per_second(setup)


def _candidate_setups(
    law: PsModel, now: ServerSetup, policy: AutoscalingPolicy
) -> Iterator[ServerSetup]:
    """Within reach of what was seen."""
    workers = policy.allowed() or (now.workers,)
    servers = sorted({max(1, now.servers // 2), now.servers, now.servers + 1, 2 * now.servers})
    cores = [round(now.server_cores * times, 3) for times in CORES]
    for numbers in itertools.product(workers, servers, cores):
        count, many, each = numbers
        setup = dataclasses.replace(now, workers=count, servers=many, server_cores=each)
        if law.reaches(setup):
            yield setup


def _from_manifest(now: ServerSetup) -> tuple[Quantity, ...]:
    why = "the manifest asks for it; runs of this command have had one setup of servers at most"
    servers, cores, workers = float(now.servers), now.server_cores, float(now.workers)
    return (
        quantify("replicas", workers, (workers, workers), "manifest", why),
        quantify("servers", servers, (1.0, 2.0 * servers), "manifest", why),
        quantify("server_cpu", cores, (0.5 * cores, 2.0 * cores), "manifest", why),
    )


def _memory(evidence: SizeEvidence, now: ServerSetup) -> Quantity | None:
    """Of one server: its share of weights and optimizer state; None where neither is known."""
    state, parameters = evidence.state, evidence.job.signature.parameters
    if state is None and parameters:
        state = gpu_memory.state_from_parameters(parameters, trained=evidence.job.trained)
    if state is None:
        return None
    held = gpu_memory.server_bytes(state, now.servers)
    why = (
        f"a {now.servers}th of weights and Adam's moments, {held / MIB:.0f} MiB, and "
        f"{RUNTIME / MIB:.0f} MiB of TensorFlow, with 25 %"
    )
    whole = held + RUNTIME
    return quantify("server_memory", MARGIN * whole, (whole, 2.0 * whole), "formula", why)
