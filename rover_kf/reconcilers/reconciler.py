# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One look at one job: observe, plan, apply.

The controller's key queue and the foreground watch both call it. Observing reads, planning is a
pure function of what was read and of the job's own annotation, applying writes; nothing but a
cache of run records is kept in between, so a look can be anyone's. The capacity around the job is
read in a second observe step, for the size that planning has proposed by then.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.decisions import ScaleDecision
from rover_kf.api.jobs import Event, JobKey, ObservedJob
from rover_kf.api.status import CoordinatorStatus
from rover_kf.cluster.protocol import Cluster
from rover_kf.history.history_protocol import HistoryStore
from rover_kf.reconcilers import policy_source, status_annotation
from rover_kf.reconcilers.cluster_view import Board
from rover_kf.reconcilers.decision_latency import DecisionTimes
from rover_kf.reconcilers.executor import Executor
from rover_kf.reconcilers.observer import Observer, come
from rover_kf.reconcilers.plan import Plan, Remember, Tell
from rover_kf.reconcilers.planner import next_delay, plan, propose
from rover_kf.reconcilers.ps_status import Servers
from rover_kf.reconcilers.requeue import Pace
from rover_kf.reconcilers.run_recording import RunHistory
from rover_kf.reconcilers.scaling import ps_scaling
from rover_kf.reconcilers.status_annotation import JobStatus

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
        self._observer = Observer(
            cluster, self._board, self._servers, self._history, policy_of=policy_of, clock=clock
        )
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
        seen, memory = self._observer.observe(job, memory, now)
        if come(seen, now):
            return Tick(job, None, memory.decision, RETRY_SECONDS)
        heard = self._clock()
        draft = propose(seen, memory, now)
        seen = self._observer.observe_capacity(seen, draft, now)
        rate = Pace(self._jobs())
        made = plan(draft, seen, now, rate)
        if made.wants is not None:
            self._board.learn(key, made.wants, made.bound)
        applied = self._executor.apply(job, made, now)
        if applied and seen.alone:
            self._servers.heard(key, seen.servers)
        window = seen.policy.window_seconds
        if applied:
            self._times.count(key, memory, made, self._clock(), window=window)
        delay = next_delay(made, seen, now, rate) if applied else RETRY_SECONDS
        recorded = self._history.update(
            job,
            seen.status,
            made.decision,
            made.told(),
            now=now,
            every=rate.write_seconds(window),
            settled=ps_scaling.settled(made, seen),
        )
        if delay is not None:
            # When the next window closes was told when the job was heard, not now.
            delay = max(0.0, delay - (self._clock() - heard))
        if job.finished:
            delay = (
                self._complete(job, made.status, now) if recorded and applied else rate.calm_seconds
            )
        return Tick(job, seen.status, made.decision, delay)

    def _complete(self, job: ObservedJob, memory: JobStatus, now: float) -> float | None:
        """Say on the job that its run is recorded; after that it is never looked at again."""
        event = Event(names.EVENT_RECORDED, "the run is in the history", at=now)
        job = self._cluster.get_job(job.key)
        done = (Tell(event), Remember(memory.with_told("recorded")))
        if not self._executor.apply(job, Plan(done, memory), now):
            return RETRY_SECONDS
        self._history.forget(job.key)
        return None
