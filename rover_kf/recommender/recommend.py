# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Sizes for a job that has not started: client, webhook and pipeline step ask here.

``combine`` is pure; ``recommend`` around it reads the manifest and the history. A history that
cannot be read costs knowledge, not the answer: the manifest and defaults are always there.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable

from rover_kf import errors
from rover_kf.api.decisions import Quantity, Recommendation
from rover_kf.api.jobs import Manifest
from rover_kf.api.records import RunRecord
from rover_kf.history.protocol import HistoryStore
from rover_kf.recommender import facts as reading
from rover_kf.recommender import neighbours, replicas, sizes
from rover_kf.recommender.facts import JobFacts
from rover_kf.recommender.profile import Profile
from rover_kf.scaling.policy import WatchPolicy

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Constraints:
    """What may be had at most; None is no bound."""

    max_replicas: int | None = None
    max_cpu: float | None = None
    """Cores of one replica."""
    max_memory: float | None = None
    """Bytes of one replica."""
    sizes: tuple[int, ...] = ()
    """Worker replicas to choose from; empty: all between the job's bounds."""
    value_of_time: float = 2.0
    """See WatchPolicy."""


def recommend(
    manifest: Manifest,
    history: HistoryStore | None = None,
    *,
    profile: Profile | None = None,
    constraints: Constraints | None = None,
    source: str = "manifest",
) -> Recommendation:
    """Recommend sizes for a manifest.

    Args:
        manifest: a PyTorchJob or TFJob, injected or not.
        history: where runs alike are looked for.
        profile: of a short real run, if there was one.
        constraints: what may be had at most.
        source: file or object named in errors.

    Raises:
        InputError: the manifest cannot be used; the message names key, value and what is allowed.
    """
    facts = reading.of(manifest, source=source)
    records: tuple[RunRecord, ...] = ()
    try:
        if history is not None:
            records = history.similar(facts.signature)
    except errors.HistoryUnavailable as error:
        LOG.warning("sizes come without the history: %s", error)
    return combine(facts, records, profile, constraints)


def combine(
    facts: JobFacts,
    records: Iterable[RunRecord],
    profile: Profile | None = None,
    constraints: Constraints | None = None,
    *,
    now: float | None = None,
) -> Recommendation:
    """Recommend sizes from what is known; pure.

    Args:
        facts: the manifest, read.
        records: runs that may be alike; those that are not are weighted away.
        profile: of a short real run.
        constraints: what may be had at most.
        now: Unix seconds that ages are counted to; the newest record by default.
    """
    limits = constraints or Constraints()
    runs = tuple(records)
    if now is None:
        now = max((run.updated_at for run in runs), default=0.0)
    sources = sizes.Sources(facts, neighbours.near(facts.signature, runs, now), profile)
    most = min(facts.max_replicas, limits.max_replicas or facts.max_replicas)
    policy = WatchPolicy(
        min=min(facts.min_replicas, most),
        max=most,
        sizes=limits.sizes,
        value_of_time=limits.value_of_time,
    )
    memory = _within(sizes.memory(sources), limits.max_memory)
    arena = sizes.arena(sources)
    return Recommendation(
        job=facts.signature.name,
        quantities=(
            _within(replicas.replicas(sources, policy), float(most)),
            _within(sizes.cpu(sources), limits.max_cpu),
            memory,
            arena,
            sizes.replica(sources, arena),
            sizes.checkpoint_every(sources),
        ),
    )


def _within(quantity: Quantity, most: float | None) -> Quantity:
    """The quantity, cut to what may be had, and saying so."""
    if most is None or quantity.target <= most:
        return quantity
    return dataclasses.replace(
        quantity,
        target=most,
        lower=min(quantity.lower, most),
        upper=most,
        why=f"{quantity.why}; cut from {quantity.target:g} to the {most:g} that may be had",
    )
