# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that are worlds of their own: what their sidecars, each its own coordinator, tell.

A TFJob's chief knows of its workers and parameter servers only that they answer. Which of their
processes died, and of what, each pod's own sidecar knows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from rover_kf import errors
from rover_kf.api.jobs import JobKey, Pod
from rover_kf.api.status import CoordinatorStatus
from rover_kf.cluster import coordinator_status
from rover_kf.cluster.protocol import Cluster
from rover_kf.reconcilers.plan import EmitJobEvent, Observed, ReconcilePlan

LOG = logging.getLogger(__name__)

MAX_PODS = 64
"""Pods that are asked at a look, parameter servers first: each answers for itself alone."""
_FIRST = ("ps", "worker")

Statuses = Mapping[str, CoordinatorStatus]


class StandaloneStatusReader:
    """Asks them, and knows how much of each one's story was heard.

    What is forgotten is told again, and an Event that is there already stays one Event.

    Args:
        cluster: where they run.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._last_sequences: dict[JobKey, dict[tuple[str, float], int]] = {}
        """By job: the newest event of a pod's story, which is known by when it began."""

    def fetch(self, key: JobKey, alone: frozenset[str], pods: tuple[Pod, ...]) -> Statuses:
        """What those that run say, with the events that are new."""
        asked = [pod for pod in pods if pod.replica_type in alone and _is_reachable(pod)]
        found: dict[str, CoordinatorStatus] = {}
        for pod in sorted(asked, key=_sort_key)[:MAX_PODS]:
            status = self._fetch_pod(key, pod)
            if status is not None:
                found[pod.name] = status
        return found

    def acknowledge(self, key: JobKey, statuses: Statuses) -> None:
        """All of that was told."""
        known = self._last_sequences.get(key, {})
        self._last_sequences[key] = {
            (name, status.started_at): max(
                (event.sequence for event in status.events),
                default=known.get((name, status.started_at), 0),
            )
            for name, status in statuses.items()
        }
        if not statuses:
            self.forget(key)

    def forget(self, key: JobKey) -> None:
        """The job is gone."""
        self._last_sequences.pop(key, None)

    def _fetch_pod(self, key: JobKey, pod: Pod) -> CoordinatorStatus | None:
        known = {
            began: number
            for (name, began), number in self._last_sequences.get(key, {}).items()
            if name == pod.name
        }
        after = max(known.values(), default=0)
        try:
            status = coordinator_status.fetch(self._cluster, key, after=after, pod=pod)
            if after and status.started_at not in known:  # another pod, or another story of it
                status = coordinator_status.fetch(self._cluster, key, pod=pod)
        except errors.ClusterUnavailable as error:
            LOG.info("%s: %s does not answer: %s", key, pod.name, error)
            return None
        return status


def apply(plan: ReconcilePlan, observed: Observed, _now: float) -> ReconcilePlan:
    """The plan with their warnings told; that all is well tells the chief's training; pure."""
    events = [
        EmitJobEvent(event)
        for status in observed.standalone_statuses.values()
        for event in status.events
        if event.warning
    ]
    return plan.with_effects(*events)


def _is_reachable(pod: Pod) -> bool:
    return pod.phase == "Running" and pod.ready and bool(pod.address) and not pod.deleting


def _sort_key(pod: Pod) -> tuple[int, int]:
    kind = pod.replica_type
    return (_FIRST.index(kind) if kind in _FIRST else len(_FIRST)), pod.replica_index
