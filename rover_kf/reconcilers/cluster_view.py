# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What one process knows of all its jobs together, and of the room that they share.

It is a cache: a controller that has just started knows each job once it has looked at it, and
what was decided is on the jobs themselves. Nodes with their pods are read when a job would change,
or others lack room, and never more than a twentieth of the time.

``make_member`` gives a job as the others count it: what it holds, lacks, wants, and gains.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Mapping

from rover_kf import errors
from rover_kf.api.cluster_capacity import (
    ClusterCapacity,
    NamespaceObjects,
    NodeCapacity,
    PodRequirements,
)
from rover_kf.api.jobs import JobKey, Pod
from rover_kf.cluster.protocol import Cluster
from rover_kf.job_kinds.registry import kind_of_job
from rover_kf.reconcilers import capacity
from rover_kf.reconcilers.plan import Observed, ReconcilePlan
from rover_kf.scaling.fair_sharing import (
    UNLIMITED,
    CompetingJob,
    FairShare,
    FairShareView,
    fair_shares,
    subtract_promised,
)

LOG = logging.getLogger(__name__)

FRESH_SECONDS = 10.0
"""How long what a namespace may have is believed, and what nodes have left while no job changes."""
REFRESH_RATIO = 20.0
"""Seconds until the next reading, for each that the last one took."""


@dataclasses.dataclass(frozen=True, slots=True)
class _CapacitySnapshot:
    """Nodes at one time, and what follows for all jobs."""

    nodes: tuple[NodeCapacity, ...] | None = None
    """Less what jobs were promised."""
    shares: Mapping[str, FairShare] = dataclasses.field(default_factory=dict)
    unread: str = ""
    fresh_until: float = 0.0
    not_before: float = 0.0


class ClusterView:
    """Jobs by their keys; used by several threads."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._reader = threading.Lock()
        self._members: dict[JobKey, CompetingJob] = {}
        self._lacking: set[JobKey] = set()
        self._changed = True
        self._reading = _CapacitySnapshot()
        self._objects: dict[str, tuple[float, NamespaceObjects]] = {}
        """By namespace, with until when they are believed."""

    def get_member(self, key: JobKey) -> CompetingJob | None:
        """The job as it was put here last."""
        with self._lock:
            return self._members.get(key)

    def set_member(self, key: JobKey, member: CompetingJob | None) -> None:
        """Put a job here as it is now; None takes it away."""
        with self._lock:
            before = self._members.pop(key, None)
            self._lacking.discard(key)
            if member is not None:
                self._members[key] = member
                if member.is_short:
                    self._lacking.add(key)
            self._changed |= _capacity_key(before) != _capacity_key(member)

    def record_demand(self, key: JobKey, wants: int, bound: str) -> None:
        """Note how many replicas the job would have (0: what it asks for), and what has no room."""
        found = self.get_member(key)
        if found is not None and (found.desired, found.bound) != (wants, bound):
            self.set_member(key, dataclasses.replace(found, desired=wants, bound=bound))

    def others_lack_capacity(self, key: JobKey) -> bool:
        """Whether another job lacks room."""
        with self._lock:
            return len(self._lacking) > (key in self._lacking)

    def view(self, key: JobKey, mine: CompetingJob, now: float) -> FairShareView:
        """Return what is around a job that was put here, or raise ClusterUnavailable."""
        reading = self._read(now)
        around = self._around(key, reading, now)
        found = [reading.shares.get(mine.name, UNLIMITED)]
        if around.quotas:
            with self._lock:
                members = [one for one in self._members.values() if one.namespace == key.namespace]
            found.append(
                fair_shares(members, ClusterCapacity(None, around.quotas)).get(mine.name, UNLIMITED)
            )
        return FairShareView(
            around, mine.requirements, min(found, key=lambda share: share.max_replicas)
        )

    def view_unshared(self, key: JobKey, need: PodRequirements, now: float) -> FairShareView:
        """Return the same of a job whose size is not shared with others; raises as ``view``."""
        return FairShareView(self._around(key, self._read(now), now), need, UNLIMITED)

    def _around(self, key: JobKey, reading: _CapacitySnapshot, now: float) -> ClusterCapacity:
        around = capacity.read_capacity(self._bounds(key.namespace, now), reading.nodes)
        if reading.unread:
            around = dataclasses.replace(around, unread=(*around.unread, reading.unread))
        return around

    def _bounds(self, namespace: str, now: float) -> NamespaceObjects:
        with self._lock:
            until, known = self._objects.get(namespace, (0.0, NamespaceObjects()))
        if now < until:
            return known
        found = self._cluster.namespace_objects(namespace)
        with self._lock:
            self._objects[namespace] = (now + FRESH_SECONDS, found)
            old = [name for name, (end, _) in self._objects.items() if end <= now]
            for name in old:
                del self._objects[name]
        return found

    def _read(self, now: float) -> _CapacitySnapshot:
        with self._lock:
            reading, members = self._reading, list(self._members.values())
            fresh = now < reading.fresh_until and not self._changed
            if fresh or now < reading.not_before:
                return reading
        # All pods of a cluster are many: one reads them at a time, the others go by the last time.
        if not self._reader.acquire(blocking=reading.fresh_until == 0):
            return reading
        try:
            return self._refresh(members, now)
        finally:
            self._reader.release()

    def _refresh(self, members: list[CompetingJob], now: float) -> _CapacitySnapshot:
        with self._lock:
            if now < self._reading.not_before:
                return self._reading  # somebody else was faster
            self._changed, before = False, self._reading.unread
        began = time.perf_counter()
        nodes, unread = self._nodes()
        if unread and unread != before:
            LOG.info("%s; jobs grow without regard to it, said once", unread)
        found = fair_shares(members, ClusterCapacity(nodes))
        nodes = subtract_promised(ClusterCapacity(nodes), members).nodes
        paused = now + REFRESH_RATIO * (time.perf_counter() - began)
        reading = _CapacitySnapshot(nodes, found, unread, now + FRESH_SECONDS, paused)
        with self._lock:
            self._reading = reading
        return reading

    def _nodes(self) -> tuple[tuple[NodeCapacity, ...] | None, str]:
        try:
            nodes = self._cluster.list_nodes()
            if nodes is None:
                return None, ""
            return capacity.node_capacities(nodes, self._cluster.list_all_pods()), ""
        except errors.InputError as refusal:
            return None, f"room on nodes is not looked at: {refusal}"


def _capacity_key(member: CompetingJob | None) -> tuple[object, ...]:
    """What of a job others' room depends on."""
    if member is None:
        return ()
    return member.requested, member.nodes, member.is_short, member.desired


_ENDED = ("Succeeded", "Failed")
_MIN_SECONDS = 1.0
"""A pod may be without a node for a moment."""


def make_member(
    made: ReconcilePlan,
    observed: Observed,
    previous: CompetingJob | None,
    now: float,
    *,
    managed: bool,
) -> CompetingJob | None:
    """Return what the job is to others; None if it holds nothing and waits for nothing.

    One whose size is not ``managed`` here counts with the size that it asks for. An amount of its
    template that is no quantity is a ValueError.
    """
    job = observed.job
    if not kind_of_job(job).elastic or job.inactive or "worker" not in job.replicas:
        return None
    move = made.status.scaling.move
    asked = job.replicas["worker"] if move is None else move.target
    workers = [pod for pod in observed.pods if pod.replica_type == "worker"]
    found = CompetingJob(
        name=str(job.key),
        namespace=job.key.namespace,
        requirements=capacity.pod_need(job),
        requested=asked,
        min_replicas=min(observed.policy.min, asked) if managed else asked,
        nodes=tuple(pod.node for pod in workers if pod.node and pod.phase not in _ENDED),
        pending_seconds=_pending_seconds(workers, now),
        weight=observed.policy.weight,
        restart_seconds=observed.policy.restart_prior_seconds,
    ).following(previous)
    return _with_rates(found, made, observed, previous) if managed else found


def _pending_seconds(workers: list[Pod], now: float) -> float:
    since = min(
        (pod.unschedulable_since for pod in workers if pod.unschedulable and not pod.deleting),
        default=now,
    )
    return now - since if now - since >= _MIN_SECONDS else 0.0


def _with_rates(
    member: CompetingJob, made: ReconcilePlan, observed: Observed, previous: CompetingJob | None
) -> CompetingJob:
    """With what sizes bring it; learned anew only where a window was measured since."""
    status = observed.status
    if status is None or not status.windows or made.proposal is None:
        return member
    seconds = status.restart_seconds or member.restart_seconds
    member = dataclasses.replace(member, restart_seconds=seconds)
    until = status.windows[-1].ended_at
    return member.with_rates(made.proposal.current, observed.policy, until, previous)
