# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One look at one job: observe, plan, apply.

The controller's key queue and the foreground watch both call it. Observing reads, planning is a
pure function of what was read and of the job's own annotation, applying writes; nothing but a
cache of run records is kept in between, so a look can be anyone's.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence

from rover_kf import errors
from rover_kf.api import final_status, names
from rover_kf.api.decisions import ScaleDecision
from rover_kf.api.jobs import Container, Event, JobKey, ObservedJob, Pod
from rover_kf.api.status import CoordinatorStatus
from rover_kf.cluster import coordinator_status
from rover_kf.cluster.protocol import Cluster
from rover_kf.history.history_protocol import HistoryStore
from rover_kf.reconcilers import (
    absent_pods,
    cluster_member,
    cpu_limits,
    cpu_overrequest,
    events,
    lost_nodes,
    memory_limits,
    node_exclusion,
    pending_pods,
    permanent_exits,
    pipeline_lease,
    policy_source,
    ps_scaling,
    ps_status,
    requeue,
    scaling,
    scaling_proposal,
    status_annotation,
    straggler_policy,
    suspend_cycle,
    suspend_policy,
)
from rover_kf.reconcilers.cluster_view import Board
from rover_kf.reconcilers.decision_latency import DecisionTimes
from rover_kf.reconcilers.executor import Executor
from rover_kf.reconcilers.plan import Observed, Patch, Plan, Remember, Resize, Tell
from rover_kf.reconcilers.ps_status import Servers
from rover_kf.reconcilers.ps_view import ServerView
from rover_kf.reconcilers.requeue import Pace
from rover_kf.reconcilers.run_recording import RunHistory
from rover_kf.reconcilers.status_annotation import JobStatus
from rover_kf.scaling.policy import WatchPolicy

AWAITED_SECONDS = 20.0


"""After a job's end; its coordinator lingers for up to ten seconds."""


def left(job: ObservedJob, pods: Sequence[Pod]) -> CoordinatorStatus | None:
    """The last status, with the Events that no controller has asked beyond; None if there is none.

    Args:
        job: with its phase.
        pods: of the job, the first pod's first.
    """
    sidecar = _coordinators_container(job, pods)
    if sidecar is None:
        return None
    return final_status.unpack(sidecar.last_words, f"{job.key}: the coordinator's container")


def come(seen: Observed, now: float) -> bool:
    """Whether they are to be waited for.

    The job has just ended, its coordinator does not answer any more, and the kubelet has not said
    yet that its container is gone.
    """
    sidecar = _coordinators_container(seen.job, seen.pods)
    if seen.status is not None or sidecar is None or not sidecar.running:
        return False
    return now - (seen.job.finished_at or 0.0) < AWAITED_SECONDS


def _coordinators_container(job: ObservedJob, pods: Sequence[Pod]) -> Container | None:
    if not job.finished or not pods or pods[0].replica_index != 0:
        return None
    found = (one for one in pods[0].containers if one.name == names.SIDECAR_CONTAINER)
    return next(found, None)


LOG = logging.getLogger(__name__)


RETRY_SECONDS = 1.0


"""After a write that came too late, or a coordinator that did not take an order."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tick:
    """What one look saw and did."""

    job: ObservedJob | None
    """None: there is no such job."""
    status: CoordinatorStatus | None
    decision: ScaleDecision | None
    delay: float | None
    """Seconds until the next look; None if only a change calls for one."""


class Reconcilers:
    """Looks at jobs.

    Args:
        cluster: where they run.
        history: where runs are recorded.
        policy_of: a job's policy; by default its annotations.
        clock: Unix seconds.
        jobs: how many there are to look at.
        times: told of each decision.
    """

    def __init__(
        self,
        cluster: Cluster,
        history: HistoryStore,
        *,
        policy_of: policy_source.PolicyOf = policy_source.of,
        clock: Callable[[], float] = time.time,
        jobs: Callable[[], int] = lambda: 1,
        times: DecisionTimes | None = None,
    ) -> None:
        self._cluster = cluster
        self._executor = Executor(cluster)
        self._board = Board(cluster)
        self._servers = Servers(cluster)
        self._history = RunHistory(history, cluster.emit)
        self._server_view = ServerView(cluster, self._board, self._history)
        self._policy_of = policy_of
        self._clock = clock
        self._jobs = jobs
        self._times = times if times is not None else DecisionTimes()

    def reconcile(self, key: JobKey) -> float | None:
        """Look at the job once; seconds until the next look, None to wait for a change.

        Raises:
            ClusterUnavailable: the cluster did not answer; call again later.
        """
        return self.tick(key).delay

    def tick(self, key: JobKey) -> Tick:
        """Look at the job once and say what was seen.

        Raises:
            ClusterUnavailable: the cluster did not answer; call again later.
        """
        now = self._clock()
        try:
            job = self._cluster.get_job(key)
        except errors.JobNotFound:
            self._history.delete(key, now)
            self._board.put(key, None)
            self._servers.forget(key)
            self._times.forget(key)
            return Tick(None, None, None, None)
        memory = status_annotation.read(job)
        if job.finished and memory.has_told("recorded"):
            return Tick(job, None, memory.decision, None)
        seen, memory = self._observe(job, memory)
        if come(seen, now):
            return Tick(job, None, memory.decision, RETRY_SECONDS)
        heard = self._clock()
        seen = self._with_view(seen, memory, now)
        rate = Pace(self._jobs())
        made = plan(seen, memory, now, rate)
        if made.wants is not None:
            self._board.learn(key, made.wants, made.bound)
        applied = self._executor.apply(job, made, now)
        if applied and seen.alone:
            self._servers.heard(key, seen.servers)
        window = seen.policy.window_seconds
        if applied:
            self._times.count(key, memory, made, self._clock(), window=window)
        delay = _delay(seen, made, now, rate) if applied else RETRY_SECONDS
        recorded = self._history.update(
            job,
            seen.status,
            made.decision,
            made.told(),
            now=now,
            every=rate.write_seconds(window),
            settled=ps_scaling.settled(seen, made.status),
        )
        if delay is not None:
            # When the next window closes was told when the job was heard, not now.
            delay = max(0.0, delay - (self._clock() - heard))
        if job.finished:
            delay = (
                self._complete(job, made.status, now) if recorded and applied else rate.calm_seconds
            )
        return Tick(job, seen.status, made.decision, delay)

    def _observe(self, job: ObservedJob, memory: JobStatus) -> tuple[Observed, JobStatus]:
        error = ""
        try:
            policy = self._policy_of(job)
        except errors.InputError as cause:
            policy, error = WatchPolicy(), str(cause)
        found = self._coordinator(job, memory.last_event)
        if found is not None and memory.last_event and found.started_at != memory.story:
            # The first pod was replaced and counts its events from 1 again.
            found = self._coordinator(job, 0)
        pods = self._cluster.list_pods(job.key)
        found = found or left(job, pods)
        if found is not None and found.started_at != memory.story:
            memory = dataclasses.replace(memory, last_event=0, story=found.started_at)
        suspects = lost_nodes.suspects(pods)
        silent = self._cluster.silent_nodes(suspects) if suspects else {}
        fleet = self._history.fleet(found.preflight if found else None)
        seen = Observed(job, pods, found, policy, silent, fleet=fleet, policy_error=error)
        if seen.alone and not job.suspended:
            told = self._servers.ask(job.key, seen.alone, pods)
            seen = dataclasses.replace(seen, servers=told)
        if memory_limits.asks(seen, memory, self._clock()):
            seen = dataclasses.replace(
                seen,
                node_memory=self._cluster.node_memory(),
                resizes=self._cluster.resizes_pods(),
            )
        if cpu_limits.asks(seen, memory, self._clock()):
            seen = dataclasses.replace(
                seen, node_cpu=self._cluster.node_cpu(), resizes=self._cluster.resizes_pods()
            )
        return seen, memory

    def _with_view(self, seen: Observed, memory: JobStatus, now: float) -> Observed:
        """With what is around the job, if it would change, or might have to give way."""
        if "ps" in seen.alone:
            return self._server_view.of(seen, memory, now)
        found = scaling_proposal.of(
            seen.job, seen.pods, seen.status, seen.policy, memory.scaling, now
        )
        seen = dataclasses.replace(seen, outlook=found)
        key, ours = seen.job.key, scaling.is_ours(seen)
        try:
            mine = cluster_member.member(seen, memory, self._board.known(key), now, ours=ours)
        except ValueError as error:
            LOG.warning("%s: what its pods ask for is not reckoned with: %s", key, error)
            mine = None
        self._board.put(key, mine)
        wanted = scaling.wanted(seen)
        if mine is None or (wanted is None and not (ours and self._board.others_short(key))):
            return seen
        view = self._board.view(key, mine, now)
        refused = ""
        if wanted is not None:
            refused = self._cluster.try_patch(key, {"spec": Resize(wanted, memory).spec})
        return dataclasses.replace(seen, view=view, refused=refused)

    def _coordinator(self, job: ObservedJob, after: int) -> CoordinatorStatus | None:
        if job.suspended:
            return None
        try:
            return coordinator_status.ask(self._cluster, job.key, after=after)
        except errors.ClusterUnavailable as error:
            LOG.info("%s: its coordinator does not answer: %s", job.key, error)
            return None

    def _complete(self, job: ObservedJob, memory: JobStatus, now: float) -> float | None:
        """Say on the job that its run is recorded; after that it is never looked at again."""
        event = Event(names.EVENT_RECORDED, "the run is in the history", at=now)
        job = self._cluster.get_job(job.key)
        done = (Tell(event), Remember(memory.with_told("recorded")))
        if not self._executor.apply(job, Plan(done, memory), now):
            return RETRY_SECONDS
        self._history.forget(job.key)
        return None


def plan(seen: Observed, memory: JobStatus, now: float, rate: Pace) -> Plan:
    """What to do about a job; pure.

    Args:
        seen: the job now.
        memory: its annotation, as read at the same time.
        now: Unix seconds.
        rate: how often its progress is written.
    """
    made = ps_status.extend(events.extend(Plan((), memory), seen, now), seen)
    made = lost_nodes.extend(made, seen, now)
    made = memory_limits.extend(absent_pods.extend(made, seen, now), seen, now)
    made = cpu_overrequest.extend(cpu_limits.extend(made, seen, now), seen, now)
    made = straggler_policy.extend(made, seen, now)
    made = permanent_exits.extend(node_exclusion.extend(made, seen, now), seen, now)
    sized = ps_scaling if "ps" in seen.alone else scaling
    made = suspend_policy.extend(sized.extend(made, seen, now), seen, now)
    made = suspend_cycle.extend(pipeline_lease.extend(made, seen, now), seen, now)
    written = status_annotation.read(seen.job)
    every = rate.write_seconds(seen.policy.window_seconds)
    for effect in made.effects:
        if isinstance(effect, Patch):
            written = dataclasses.replace(effect.status, written_at=now)
    if made.status.deserves_writing(written, now, every):
        made = made.then(Remember(made.status), status=made.status)
    return made


def _delay(seen: Observed, made: Plan, now: float, rate: Pace) -> float | None:
    if seen.job.suspended or seen.job.deleting:
        return suspend_cycle.delay(made, seen)
    launched = pipeline_lease.delay(made, seen, now)
    usual = requeue.delay(seen, rate, moving=made.status.scaling.move is not None)
    shunned = node_exclusion.delay(seen, made.status, now)
    suspended = suspend_policy.delay(made, seen, now)
    raised = memory_limits.delay(seen)
    found = (lost_nodes.delay(seen, now), absent_pods.delay(seen), pending_pods.delay(seen, now))
    waits = (*found, raised, shunned, suspended, launched)
    sooner = [wait for wait in waits if wait is not None]
    return max(min((usual, *sooner)), 0.5)
