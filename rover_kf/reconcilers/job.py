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
from collections.abc import Callable

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.decisions import ScaleDecision
from rover_kf.api.jobs import Event, JobKey, ObservedJob
from rover_kf.api.status import CoordinatorStatus
from rover_kf.cluster import coordinator_status
from rover_kf.cluster.protocol import Cluster
from rover_kf.history.protocol import HistoryStore
from rover_kf.reconcilers import (
    absentees,
    avoidance,
    cpu_limits,
    cpu_spare,
    cycle,
    endings,
    last_words,
    launches,
    membership,
    memory_limits,
    nodes,
    outlook,
    pace,
    policies,
    scaling,
    server_sizes,
    servers,
    slow_pods,
    status,
    story,
    suspension,
    unstarted,
)
from rover_kf.reconcilers.board import Board
from rover_kf.reconcilers.decision_times import DecisionTimes
from rover_kf.reconcilers.executor import Executor
from rover_kf.reconcilers.history import RunHistory
from rover_kf.reconcilers.pace import Pace
from rover_kf.reconcilers.plan import Observed, Patch, Plan, Remember, Resize, Tell
from rover_kf.reconcilers.server_view import ServerView
from rover_kf.reconcilers.servers import Servers
from rover_kf.reconcilers.status import JobStatus
from rover_kf.scaling.policy import WatchPolicy

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
        policy_of: policies.PolicyOf = policies.of,
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
        memory = status.read(job)
        if job.finished and memory.has_told("recorded"):
            return Tick(job, None, memory.decision, None)
        seen, memory = self._observe(job, memory)
        if last_words.come(seen, now):
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
            settled=server_sizes.settled(seen, made.status),
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
        found = found or last_words.left(job, pods)
        if found is not None and found.started_at != memory.story:
            memory = dataclasses.replace(memory, last_event=0, story=found.started_at)
        suspects = nodes.suspects(pods)
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
        found = outlook.of(seen.job, seen.pods, seen.status, seen.policy, memory.scaling, now)
        seen = dataclasses.replace(seen, outlook=found)
        key, ours = seen.job.key, scaling.is_ours(seen)
        try:
            mine = membership.member(seen, memory, self._board.known(key), now, ours=ours)
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
    made = servers.extend(story.extend(Plan((), memory), seen, now), seen)
    made = nodes.extend(made, seen, now)
    made = memory_limits.extend(absentees.extend(made, seen, now), seen, now)
    made = cpu_spare.extend(cpu_limits.extend(made, seen, now), seen, now)
    made = slow_pods.extend(made, seen, now)
    made = endings.extend(avoidance.extend(made, seen, now), seen, now)
    sized = server_sizes if "ps" in seen.alone else scaling
    made = suspension.extend(sized.extend(made, seen, now), seen, now)
    made = cycle.extend(launches.extend(made, seen, now), seen, now)
    written = status.read(seen.job)
    every = rate.write_seconds(seen.policy.window_seconds)
    for effect in made.effects:
        if isinstance(effect, Patch):
            written = dataclasses.replace(effect.status, written_at=now)
    if made.status.deserves_writing(written, now, every):
        made = made.then(Remember(made.status), status=made.status)
    return made


def _delay(seen: Observed, made: Plan, now: float, rate: Pace) -> float | None:
    if seen.job.suspended or seen.job.deleting:
        return cycle.delay(made, seen)
    launched = launches.delay(made, seen, now)
    usual = pace.delay(seen, rate, moving=made.status.scaling.move is not None)
    shunned = avoidance.delay(seen, made.status, now)
    suspended = suspension.delay(made, seen, now)
    raised = memory_limits.delay(seen)
    found = (nodes.delay(seen, now), absentees.delay(seen), unstarted.delay(seen, now))
    waits = (*found, raised, shunned, suspended, launched)
    sooner = [wait for wait in waits if wait is not None]
    return max(min((usual, *sooner)), 0.5)
