# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The two observe steps of a tick: the job itself, then the capacity that its proposal needs.

These are all reads of the reconcilers. The second step depends on the proposal because nodes with
their pods are expensive to read and a dry run needs the exact patch.

A TFJob's chief knows of its workers and parameter servers only that they answer. Which of their
processes died, and of what, each pod's own sidecar knows, which is a coordinator of its own.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence

from rover_kf import errors
from rover_kf.api import names, termination_log
from rover_kf.api.jobs import ContainerStatus, JobKey, ObservedJob, Pod
from rover_kf.api.status import CoordinatorStatus
from rover_kf.cluster.protocol import Cluster, fetch_status
from rover_kf.reconcilers import capacity, cluster_view, policy_source
from rover_kf.reconcilers.cluster_view import ClusterView
from rover_kf.reconcilers.plan import Observed, ReconcilePlan, resume_spec, worker_spec
from rover_kf.reconcilers.policies import cpu_limits, lost_nodes, memory_limits
from rover_kf.reconcilers.run_recording import RunHistory
from rover_kf.reconcilers.scaling import replica_scaling, resize, scaling_proposal
from rover_kf.reconcilers.status_annotation import JobStatus
from rover_kf.scaling.policy import AutoscalingPolicy

LOG = logging.getLogger(__name__)

WAIT_SECONDS = 20.0
"""After a job's end; its coordinator lingers for up to ten seconds."""


class Observer:
    """A reader of jobs, their coordinators, and the cluster around them.

    Its methods raise ClusterUnavailable where the cluster does not answer.
    """

    def __init__(
        self,
        cluster: Cluster,
        board: ClusterView,
        servers: StandaloneStatusReader,
        history: RunHistory,
        *,
        policy_of: policy_source.PolicyOf,
        clock: Callable[[], float],
    ) -> None:
        self._cluster, self._board, self._servers = cluster, board, servers
        self._history, self._policy_of, self._clock = history, policy_of, clock

    def observe(self, job: ObservedJob, memory: JobStatus) -> tuple[Observed, JobStatus]:
        """Return the job now, and its annotation, adjusted if its coordinator is a new one."""
        error = ""
        try:
            policy = self._policy_of(job)
        except errors.InputError as cause:
            policy, error = AutoscalingPolicy(), str(cause)
        found, invalid = self._coordinator(job, memory.last_event)
        if found is not None and memory.last_event and found.started_at != memory.events_since:
            # The first pod was replaced and counts its events from 1 again.
            found, invalid = self._coordinator(job, 0)
        pods = self._cluster.list_pods(job.key)
        found = found or left(job, pods)
        if found is not None and found.started_at != memory.events_since:
            memory = dataclasses.replace(memory, last_event=0, events_since=found.started_at)
        suspects = lost_nodes.suspect_nodes(pods)
        silent = self._cluster.unreachable_nodes(suspects) if suspects else {}
        fleet = self._history.fleet(found.preflight if found else None, job.key.namespace)
        seen = Observed(
            job, pods, found, policy, silent, fleet=fleet, policy_error=error, status_error=invalid
        )
        if seen.standalone_types and not job.suspended:
            told = self._servers.fetch(job.key, seen.standalone_types, pods)
            seen = dataclasses.replace(seen, standalone_statuses=told)
        return self._with_node_sizes(seen, memory), memory

    def observe_history(self, seen: Observed, memory: JobStatus, now: float) -> Observed:
        """Return the job with the model of its parameter servers, if its size may be changed."""
        if not scaling_proposal.is_scalable(seen, memory):
            return seen
        return dataclasses.replace(seen, ps_model=self._history.fit_ps_model(seen.job, now))

    def observe_capacity(self, seen: Observed, draft: ReconcilePlan, now: float) -> Observed:
        """Return the job with what is around it, if it would change, or might have to shrink."""
        if "ps" in seen.standalone_types:
            return self._around_servers(seen, draft, now)
        key, ours = seen.job.key, replica_scaling.is_managed(seen)
        try:
            mine = cluster_view.make_member(
                draft, seen, self._board.get_member(key), now, managed=ours
            )
        except ValueError as error:
            LOG.warning("%s: what its pods ask for is not reckoned with: %s", key, error)
            mine = None
        self._board.set_member(key, mine)
        decision = replica_scaling.target_change(draft, seen)
        if mine is None or (
            decision is None and not (ours and self._board.others_lack_capacity(key))
        ):
            return seen
        view = self._board.view(key, mine, now)
        refused = ""
        if decision is not None:
            refused = self._refused(seen, worker_spec(seen.job, decision.target))
        return dataclasses.replace(seen, capacity=view, rejection=refused)

    def _around_servers(self, seen: Observed, draft: ReconcilePlan, now: float) -> Observed:
        """The same of a job with parameter servers."""
        memory = draft.status
        pending = resize.pending_move(memory)
        if seen.job.suspended and memory.cycle_started_at and pending is not None and not seen.pods:
            goes_on = resume_spec(seen.job, resize.target_replicas(seen.job, pending))
            return dataclasses.replace(seen, rejection=self._refused(seen, goes_on))
        decision = replica_scaling.target_change(draft, seen)
        if decision is None:
            return seen
        refused = ""
        if not replica_scaling.needs_cycle(draft):
            # What is set while all pods are gone is tried then.
            refused = self._refused(seen, worker_spec(seen.job, decision.target))
        need = capacity.pod_need(seen.job, replica_scaling.growing_type(decision) or "worker")
        view = self._board.view_unshared(seen.job.key, need, now)
        return dataclasses.replace(seen, capacity=view, rejection=refused)

    def _with_node_sizes(self, seen: Observed, memory: JobStatus) -> Observed:
        """With what bounds a raise of limits, where one is due."""
        cluster, needs = self._cluster, memory_limits.needs_node_data(seen, memory, self._clock())
        if needs:
            seen = dataclasses.replace(seen, node_memory=cluster.node_sizes("memory"))
        if cpu_limits.needs_node_data(seen, memory, self._clock()):
            seen, needs = dataclasses.replace(seen, node_cpu=cluster.node_sizes("cpu")), True
        return dataclasses.replace(seen, resizes=cluster.supports_pod_resize()) if needs else seen

    def _coordinator(self, job: ObservedJob, after: int) -> tuple[CoordinatorStatus | None, str]:
        """Return the status, and why the answer cannot be used; neither where there is none."""
        if job.suspended:
            return None, ""
        try:
            return fetch_status(self._cluster, job.key, after=after), ""
        except errors.ClusterUnavailable as error:
            LOG.info("%s: its coordinator does not answer: %s", job.key, error)
        except errors.ProtocolError as error:
            return None, str(error)
        return None, ""

    def _refused(self, seen: Observed, spec: Mapping[str, object]) -> str:
        return self._cluster.dry_run_patch(seen.job.key, {"spec": spec})


def left(job: ObservedJob, pods: Sequence[Pod]) -> CoordinatorStatus | None:
    """Return the last status, with the Events that no controller has read; None without one."""
    sidecar = _coordinator_container(job, pods)
    if sidecar is None:
        return None
    return termination_log.unpack(
        sidecar.termination_message, f"{job.key}: the coordinator's container"
    )


def is_final_status_pending(observed: Observed, now: float) -> bool:
    """Whether they are to be waited for.

    The job has just ended, its coordinator does not answer any more, and the kubelet has not said
    yet that its container is gone.
    """
    sidecar = _coordinator_container(observed.job, observed.pods)
    if observed.status is not None or sidecar is None or not sidecar.running:
        return False
    return now - (observed.job.finished_at or 0.0) < WAIT_SECONDS


def _coordinator_container(job: ObservedJob, pods: Sequence[Pod]) -> ContainerStatus | None:
    if not job.finished or not pods or pods[0].replica_index != 0:
        return None
    found = (one for one in pods[0].containers if one.name == names.SIDECAR_CONTAINER)
    return next(found, None)


MAX_PODS = 64
"""Pods that are asked at a look, parameter servers first: each answers for itself alone."""
_FIRST = ("ps", "worker")

Statuses = Mapping[str, CoordinatorStatus]


class StandaloneStatusReader:
    """A reader of their statuses, which knows how much of each one's story was read.

    What is forgotten is emitted again, and an Event that is there already stays one Event.
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
            status = fetch_status(self._cluster, key, after=after, pod=pod)
            if after and status.started_at not in known:  # another pod, or another story of it
                status = fetch_status(self._cluster, key, pod=pod)
        except (errors.ClusterUnavailable, errors.ProtocolError) as error:
            LOG.info("%s: %s does not answer: %s", key, pod.name, error)
            return None
        return status


def _is_reachable(pod: Pod) -> bool:
    return pod.phase == "Running" and pod.ready and bool(pod.address) and not pod.deleting


def _sort_key(pod: Pod) -> tuple[int, int]:
    kind = pod.replica_type
    return (_FIRST.index(kind) if kind in _FIRST else len(_FIRST)), pod.replica_index
