# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Sizes for a job that has not started: client, webhook and pipeline step ask here.

``combine`` is pure; ``recommend`` around it reads the manifest and the history. A history that
cannot be read costs knowledge, not the answer: the manifest and defaults are always there.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterable

from rover_kf import errors
from rover_kf.api.decisions import Proposal, Quantity, Recommendation
from rover_kf.api.jobs import Manifest
from rover_kf.api.records import RunRecord
from rover_kf.history.history_protocol import HistoryStore
from rover_kf.recommender import (
    checkpoint_sizes,
    communication_model,
    constraints,
    container_resources,
    gpu_memory,
    parallelism_advice,
    parameter_servers,
    price,
    replicas,
    size_evidence,
)
from rover_kf.recommender import job_signature as reading
from rover_kf.recommender.constraints import Constraints, apply_bounds
from rover_kf.recommender.job_signature import JobFacts
from rover_kf.recommender.price import PriceTable
from rover_kf.recommender.profile import Profile
from rover_kf.recommender.size_evidence import SimilarRun, SizeEvidence
from rover_kf.scaling.policy import AutoscalingPolicy

LOG = logging.getLogger(__name__)

ASSUMED_BANDWIDTH = 1.25e9
"""Bytes a second between two nodes (10 Gbit/s), where nothing tells better."""


def recommend(
    manifest: Manifest,
    history: HistoryStore | None = None,
    *,
    profile: Profile | None = None,
    constraints: Constraints | None = None,
    prices: PriceTable | None = None,
    parameters: float | None = None,
    trained: float | None = None,
    source: str = "manifest",
) -> Recommendation:
    """Recommend sizes for a PyTorchJob or TFJob, injected or not.

    Args:
        manifest: the job's.
        history: with runs alike.
        profile: of a dry run or a short real run.
        constraints: the most that may be had.
        prices: of an hour.
        parameters: of the model, where nothing else shows them.
        trained: of them, those that are trained; None: all (fewer is LoRA or the like).
        source: file or object named in errors.

    Raises:
        InputError: the manifest cannot be used; the message names key, value and what is allowed.
    """
    facts = reading.from_manifest(manifest, source=source)
    if parameters is not None:
        signature = dataclasses.replace(facts.signature, parameters=parameters)
        facts = dataclasses.replace(facts, signature=signature, trained=trained)
    records: tuple[RunRecord, ...] = ()
    notes: tuple[str, ...] = ()
    try:
        if history is not None:
            records = history.similar(facts.signature)
    except errors.HistoryUnavailable as error:
        LOG.warning("sizes come without the history: %s", error)
        notes = (f"the history was not asked: {error}",)
    return combine_evidence(facts, records, profile, constraints, prices=prices, notes=notes)


def combine_evidence(
    facts: JobFacts,
    records: Iterable[RunRecord],
    profile: Profile | None = None,
    constraints: Constraints | None = None,
    *,
    prices: PriceTable | None = None,
    notes: tuple[str, ...] = (),
    now: float | None = None,
) -> Recommendation:
    """Recommend sizes from what is known; pure.

    Runs that are not alike are weighted away. Ages are counted to ``now``, by default the time of
    the newest record. Notes name what could not be read.
    """
    limits = constraints or Constraints()
    sources = _collect_evidence(facts, tuple(records), profile, now)
    sizes, unmet = _sizes(sources, limits)
    found = {item.name: item for item in sizes}
    refusals = profile.failures if profile is not None else ()
    return Recommendation(
        job=facts.signature.name,
        quantities=sizes,
        cost=price.predict_cost(sources, found, prices) if prices is not None else None,
        proposals=_proposals(sources, limits, round(found["replicas"].target)),
        notes=(*notes, *limits.unread, *refusals, *unmet),
    )


def _collect_evidence(
    facts: JobFacts, runs: tuple[RunRecord, ...], profile: Profile | None, now: float | None
) -> SizeEvidence:
    if now is None:
        now = max((run.updated_at for run in runs), default=0.0)
    near = size_evidence.find_similar(facts.signature, runs, now)
    known = {run.record.uid for run in near}
    others = tuple(SimilarRun(run, 0.0) for run in runs if run.uid not in known)
    return SizeEvidence(facts, near, profile, others)


def _sizes(
    evidence: SizeEvidence, limits: Constraints
) -> tuple[tuple[Quantity, ...], tuple[str, ...]]:
    facts = evidence.job
    snapshots = checkpoint_sizes.recommend_arena(evidence)
    cpu = limits.cpu(container_resources.recommend_cpu(evidence))
    memory = limits.memory(container_resources.recommend_memory(evidence), snapshots)
    pod = constraints.required(cpu, memory, snapshots, facts.signature.accelerators)
    room = limits.replicas(pod) - facts.masters
    policy = _policy(facts, limits, room)
    wanted = parameter_servers.recommend_sizes(evidence, policy) or (
        apply_bounds(replicas.recommend_replicas(evidence, policy), float(policy.max)),
    )
    found = (
        *wanted,
        container_resources.recommend_processes(evidence),
        cpu,
        memory,
        gpu_memory.predict_memory(evidence) if _has_devices(evidence, limits) else None,
        gpu_memory.recommend_batch(evidence, limits.accelerator_memory, limits.max_memory),
        snapshots,
        checkpoint_sizes.recommend_replica_arena(evidence, snapshots),
        checkpoint_sizes.required_bandwidth(evidence),
        checkpoint_sizes.measured_bandwidth(evidence),
        checkpoint_sizes.recommend_interval(evidence),
    )
    unmet: tuple[str, ...] = ()
    if room < facts.min_replicas:
        missing = (
            f"there is room for {max(room, 0):g} of the {facts.min_replicas} worker replicas that "
            "the job needs at least: quota or nodes are too small"
        )
        unmet = (missing,)
    return tuple(item for item in found if item is not None), unmet


def _policy(facts: JobFacts, limits: Constraints, room: float) -> AutoscalingPolicy:
    most = min(facts.max_replicas, limits.max_replicas or facts.max_replicas)
    if not math.isinf(room):
        most = max(1, min(most, int(room)))
    return AutoscalingPolicy(
        min=min(facts.min_replicas, most),
        max=most,
        sizes=limits.sizes,
        value_of_time=limits.value_of_time,
    )


def _has_devices(evidence: SizeEvidence, limits: Constraints) -> bool:
    return bool(evidence.job.signature.accelerators) or limits.accelerator_memory is not None


def _proposals(evidence: SizeEvidence, limits: Constraints, count: int) -> tuple[Proposal, ...]:
    device = gpu_memory.fit_device(evidence)
    if device is None or not _has_devices(evidence, limits):
        return ()
    rate = limits.network_bytes_per_second
    learned = None if rate else replicas.fit_network(evidence)
    nodes = count + evidence.job.masters
    setting = parallelism_advice.ParallelismContext(
        device=device,
        trials=evidence.trials,
        network=learned or communication_model.from_bandwidth(rate or ASSUMED_BANDWIDTH),
        processes=nodes * evidence.job.signature.processes_per_node,
        nodes=nodes,
        limit=limits.accelerator_memory,
    )
    return parallelism_advice.propose_configs(setting)
