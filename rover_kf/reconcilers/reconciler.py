# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One look at one job: observe, plan, apply.

The controller's key queue and the foreground watch both call it. Observing reads, planning is a
pure function of what was read and of the job's own annotation, applying writes; nothing but a
cache of run records is kept in between, so a look can be anyone's. The capacity around the job is
read in a second observe step, for the size that planning has proposed by then.

``run_foreground`` does it for those without rights on the cluster (``rover-kf run``, ``watch``).
More than one watcher of a job do not harm it: writes carry the version that was read.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Histogram

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.decisions import ScaleDecision
from rover_kf.api.jobs import Event, JobKey, ObservedJob
from rover_kf.api.status import CoordinatorStatus
from rover_kf.cluster.protocol import Cluster
from rover_kf.history.history_protocol import HistoryStore
from rover_kf.reconcilers import policy_source, status_annotation
from rover_kf.reconcilers.cluster_view import ClusterView
from rover_kf.reconcilers.executor import Executor
from rover_kf.reconcilers.observer import Observer, StandaloneStatusReader, is_final_status_pending
from rover_kf.reconcilers.plan import EmitJobEvent, PatchJob, ReconcilePlan
from rover_kf.reconcilers.planner import RequeueIntervals, next_delay, plan, propose
from rover_kf.reconcilers.run_recording import RunHistory
from rover_kf.reconcilers.scaling import replica_scaling
from rover_kf.reconcilers.status_annotation import JobStatus

LOG = logging.getLogger(__name__)
RETRY_SECONDS = 1.0
"""After a write that came too late, or a coordinator that did not take an order."""
BOUNDS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Upper bounds of decision latencies, in seconds."""
OnReconcile = Callable[[ObservedJob, "CoordinatorStatus | None", "ScaleDecision | None"], None]
"""Called after each look with the job, its coordinator's status, what was decided."""


class DecisionLatency:
    """A histogram of decisions, by the time since their window closed; safe for threads."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._lock = threading.Lock()
        name = "rover_kf_decision_seconds"
        text = "From the close of a throughput window to the decision made of it."
        self._seconds = Histogram(name, text, buckets=BOUNDS, registry=registry)
        self._counted_windows: dict[JobKey, float] = {}
        """End of each job's newest window that was decided on."""

    def count(
        self, key: JobKey, job_status: JobStatus, plan: ReconcilePlan, now: float, *, window: float
    ) -> None:
        """Count the decision of a plan that was applied, if its window is a new one.

        The status before the plan is written less often than windows of that length close.
        """
        if plan.decision is None:
            return
        ended = plan.status.scaling.seen_until
        with self._lock:
            known = max(job_status.scaling.seen_until, self._counted_windows.get(key, 0.0))
            # The same window may come with a slightly other time (clock skew).
            if ended <= known + window / 2:
                return
            self._counted_windows[key] = ended
        self._seconds.observe(now - ended)

    def forget(self, key: JobKey) -> None:
        """Drop what is known of a job that is gone."""
        with self._lock:
            self._counted_windows.pop(key, None)


@dataclasses.dataclass(frozen=True, slots=True)
class ReconcileResult:
    """What one look saw and did."""

    job: ObservedJob | None
    """None: there is no such job."""
    status: CoordinatorStatus | None
    decision: ScaleDecision | None
    delay: float | None
    """Seconds until the next look; None if only a change calls for one."""


class Reconciler:
    """A reconciler of so many jobs, which counts each decision by its latency."""

    def __init__(
        self,
        cluster: Cluster,
        history: HistoryStore,
        *,
        policy_of: policy_source.PolicyOf = policy_source.policy_from_job,
        clock: Callable[[], float] = time.time,
        jobs: Callable[[], int] = lambda: 1,
        latency: DecisionLatency | None = None,
    ) -> None:
        self._cluster = cluster
        self._executor = Executor(cluster)
        self._cluster_view = ClusterView(cluster)
        self._status_reader = StandaloneStatusReader(cluster)
        self._history = RunHistory(history, cluster.emit)
        sources = (self._cluster_view, self._status_reader, self._history)
        self._observer = Observer(cluster, *sources, policy_of=policy_of, clock=clock)
        self._clock = clock
        self._jobs = jobs
        self._latency = latency if latency is not None else DecisionLatency()

    def reconcile(self, key: JobKey) -> float | None:
        """Look at the job once; seconds until the next look, None to wait for a change."""
        return self.run_once(key).delay

    def run_once(self, key: JobKey) -> ReconcileResult:
        """Look at the job once and return what was seen, or raise ClusterUnavailable."""
        now = self._clock()
        try:
            job = self._cluster.get_job(key)
        except errors.NoSuchJob:
            self._history.delete(key, now)
            self._cluster_view.set_member(key, None)
            self._status_reader.forget(key)
            self._latency.forget(key)
            return ReconcileResult(None, None, None, None)
        memory = status_annotation.read(job)
        if job.finished and memory.has_emitted("recorded"):
            return ReconcileResult(job, None, memory.decision, None)
        seen, memory = self._observer.observe(job, memory)
        if is_final_status_pending(seen, now):
            return ReconcileResult(job, None, memory.decision, RETRY_SECONDS)
        heard = self._clock()
        # After it: a slow history must not delay the next tick.
        seen = self._observer.observe_history(seen, memory, now)
        draft = propose(seen, memory, now)
        seen = self._observer.observe_capacity(seen, draft, now)
        rate = RequeueIntervals(self._jobs())
        made = plan(draft, seen, now, rate)
        if made.desired_replicas is not None:
            self._cluster_view.record_demand(key, made.desired_replicas, made.limited_by)
        applied = self._executor.apply(job, made, now)
        if applied and seen.standalone_types:
            self._status_reader.acknowledge(key, seen.standalone_statuses)
        window = seen.policy.window_seconds
        if applied:
            self._latency.count(key, memory, made, self._clock(), window=window)
        delay = next_delay(made, seen, now, rate) if applied else RETRY_SECONDS
        seconds, settled = rate.write_seconds(window), replica_scaling.is_settled(made, seen)
        news = (seen.status, made.decision, made.collect_events())
        recorded = self._history.update(job, *news, now=now, every=seconds, settled=settled)
        if delay is not None:
            # When the next window closes was told when the job was heard, not now.
            delay = max(0.0, delay - (self._clock() - heard))
        if job.finished:
            done = recorded and applied
            delay = self._mark_recorded(job, made.status, now) if done else rate.idle_seconds
        return ReconcileResult(job, seen.status, made.decision, delay)

    def _mark_recorded(self, job: ObservedJob, job_status: JobStatus, now: float) -> float | None:
        """Say on the job that its run is recorded; after that it is never looked at again."""
        event = Event(names.EVENT_RECORDED, "the run is in the history", at=now)
        job = self._cluster.get_job(job.key)
        done = (EmitJobEvent(event), PatchJob(job_status.with_emitted("recorded")))
        if not self._executor.apply(job, ReconcilePlan(done, job_status), now):
            return RETRY_SECONDS
        self._history.forget(job.key)
        return None


def run_foreground(
    cluster: Cluster,
    key: JobKey,
    history: HistoryStore,
    *,
    stop: threading.Event,
    on_reconcile: OnReconcile | None = None,
    policy_of: policy_source.PolicyOf = policy_source.policy_from_job,
    every: float = 1.0,
    clock: Callable[[], float] = time.time,
) -> ObservedJob | None:
    """Reconcile one job in this thread until it has ended and is recorded, or stop is set.

    Between two looks are at most ``every`` seconds; the job's windows may ask for fewer. The job
    is returned as seen last; None if it is not there (any more).
    """
    reconciler = Reconciler(cluster, history, policy_of=policy_of, clock=clock)
    last: ObservedJob | None = None
    while not stop.is_set():
        delay: float | None = every
        try:
            tick = reconciler.run_once(key)
        except errors.RoverError as error:  # the loop's top: the next look may do better
            LOG.warning("%s: %s", key, error)
        else:
            if tick.job is None:
                return None
            last, delay = tick.job, tick.delay
            if on_reconcile is not None:
                on_reconcile(tick.job, tick.status, tick.decision)
            if tick.job.finished and delay is None:
                return last
        stop.wait(every if delay is None else min(delay, every))
    return last
