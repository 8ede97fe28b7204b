# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Memory limits that are too low: raised in the job's template, then in its pods; pure.

What the template states is what all pods of the type shall have. A pod that has less is resized
while it runs, where Kubernetes can do that; else it is replaced, one pod at a time, since each
keeps others' state. A controller that was killed in between finds which pods are behind. A TFJob's
pods are not replaced: those that cannot be resized have the limit when they are made anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from rover_kf.api import names
from rover_kf.api.faults.limit_raises import MemoryLimitRaises, MemoryTrend, OomKill
from rover_kf.api.jobs import ContainerStatus, Event, Pod
from rover_kf.elastic.resources.memory_limit import (
    MemoryRaiseDecision,
    MemoryRaiseLimits,
    RemainingWork,
    after_oom,
    before_oom,
)
from rover_kf.injection import quantities
from rover_kf.injection.limits.manifest_memory import MEMORY
from rover_kf.injection.limits.raised_limit import LimitRaise
from rover_kf.job_kinds.job_kind import JobKind, Replica
from rover_kf.job_kinds.registry import kind_of
from rover_kf.reconcilers.plan import (
    DeletePod,
    EmitJobEvent,
    Observed,
    PatchJob,
    ReconcilePlan,
    ResizeContainer,
)
from rover_kf.reconcilers.status_annotation import JobStatus
from rover_kf.scaling.decision_input import UNKNOWN_WORK_SECONDS

SIGKILL_CODE = 137
"""SIGKILL. A container of which a child was killed may end well and be called OOMKilled, too."""
POLL_SECONDS = 3.0
"""Between two looks at a job whose limit may be raised: its launchers wait for it after a kill."""
MAX_REASON = 160
"""Of why a limit was raised, as the annotation keeps it."""
DEFERRED_SECONDS = 30.0
"""How long a node may put a resize off for want of room; then the pod goes to another one."""


def apply(plan: ReconcilePlan, observed: Observed, now: float) -> ReconcilePlan:
    """The plan with limits raised after kills, and with pods brought to their limits."""
    if observed.job.inactive:
        return plan
    for replica in _managed_replicas(observed):
        growth = _decide_raise(replica, observed, plan.status, now)
        if growth is not None:
            plan = _execute(plan, replica, growth, observed, now)
    return plan.with_effects(*_plan_resizes(observed, now))


def needs_node_data(observed: Observed, job_status: JobStatus, now: float) -> bool:
    """Whether it matters what the nodes have, and whether pods can be resized."""
    if observed.job.inactive or not observed.policy.max_memory:
        return False
    growths = (_decide_raise(one, observed, job_status, now) for one in _managed_replicas(observed))
    return any(growth and growth.limit for growth in growths) or any(_pods_to_resize(observed, now))


def delay(observed: Observed) -> float | None:
    """Seconds until the next look; None if nothing is raised in this job."""
    return POLL_SECONDS if observed.policy.max_memory and not observed.job.inactive else None


def _job_kind(observed: Observed) -> JobKind:
    return kind_of(observed.job.manifest)


def _managed_replicas(observed: Observed) -> tuple[Replica, ...]:
    return _job_kind(observed).replicas(observed.job.manifest)


def _decide_raise(
    replica: Replica, observed: Observed, job_status: JobStatus, now: float
) -> MemoryRaiseDecision | None:
    """What follows from kills of this type's pods; None if there is no limit to raise."""
    job_kind = _job_kind(observed)
    limit = MEMORY.limit_of(job_kind.trainer(replica))
    kills, trend = tuple(_oom_kills(replica, observed)), _trend(replica, observed)
    if limit is None or not (kills or trend):
        return None
    node = max(map(quantities.parse_bytes, observed.node_memory), default=None)
    if node is not None:
        node = max(node - MEMORY.other_containers_request(replica, job_kind), 0)
    bounds = MemoryRaiseLimits(observed.policy.max_memory, node)
    known = (one for one in job_status.memory if one.replica_type == replica.kind)
    found = after_oom(kills, next(known, MemoryLimitRaises(replica.kind)), limit, bounds, now)
    if found.limit or found.denial_reason or trend is None or not observed.policy.max_memory:
        return found
    return before_oom(trend, found.state, limit, bounds, work=_remaining_work(observed), now=now)


def _trend(replica: Replica, observed: Observed) -> MemoryTrend | None:
    """Of the worst pod of the world that such pods belong to."""
    if replica.kind not in observed.standalone_types:
        return observed.status.memory_trend if observed.status else None
    pods = {pod.name for pod in observed.pods if pod.replica_type == replica.kind}
    told = [
        status.memory_trend for name, status in observed.standalone_statuses.items() if name in pods
    ]
    return max((one for one in told if one), key=lambda trend: trend.memory, default=None)


def _remaining_work(observed: Observed) -> RemainingWork:
    status = observed.status
    if status is None or not status.windows or status.total_steps is None:
        return RemainingWork(UNKNOWN_WORK_SECONDS)
    left = max(0, status.total_steps - status.step) * status.windows[-1].step_seconds
    return RemainingWork(left, status.restart_seconds)


def _oom_kills(replica: Replica, observed: Observed) -> Iterator[OomKill]:
    pods = {pod.name: pod for pod in observed.pods if pod.replica_type == replica.kind}
    for status in (observed.status, *observed.standalone_statuses.values()):
        if status is not None:
            yield from (kill for kill in status.oom_kills if kill.pod in pods)
    for pod in pods.values():
        trainer = _trainer(pod, observed)
        if trainer is None or trainer.exit_code != SIGKILL_CODE:
            continue
        if trainer.termination_reason == "OOMKilled":
            yield OomKill(pod.name, trainer.ended_at)


def _execute(
    plan: ReconcilePlan,
    replica: Replica,
    growth: MemoryRaiseDecision,
    observed: Observed,
    now: float,
) -> ReconcilePlan:
    killed = ", ".join(sorted({kill.pod for kill in _oom_kills(replica, observed)}))
    why = growth.predicted_reason or f"the kernel killed for memory in {killed}"
    state = growth.state
    state = dataclasses.replace(state, reason=why[:MAX_REASON]) if growth.limit else state
    others = (one for one in plan.status.memory if one.replica_type != replica.kind)
    memory = dataclasses.replace(plan.status, memory=(*others, state))
    job_kind = _job_kind(observed)
    trainer = job_kind.trainer(replica)
    limit = MEMORY.limit_of(trainer) or 0
    if growth.limit is not None:
        known = MEMORY.raised(observed.job.manifest)
        stated = MEMORY.stated(observed.job.manifest, replica.key, trainer) or limit
        text = MEMORY.annotation({**known, replica.key: LimitRaise(stated, growth.limit)})
        patch = MEMORY.patch(replica, job_kind, growth.limit)
        event = _make_raised_event(replica, (limit, growth.limit), why, observed, now)
        raising = PatchJob(memory, patch, {MEMORY.annotation_key: text})
        return plan.with_effects(raising, EmitJobEvent(event), status=memory)
    plan = dataclasses.replace(plan, status=memory)
    if not growth.denial_reason:
        return plan
    event = _make_not_raised_event(replica, limit, growth.denial_reason, observed, now)
    return plan.emit_once(f"memory:{replica.kind}:{limit}", event)


def _plan_resizes(observed: Observed, now: float) -> Iterator[ResizeContainer | DeletePod]:
    """What gives pods their limits; of those that have to go to another node, one."""
    behind, job_kind = tuple(_pods_to_resize(observed, now)), _job_kind(observed)
    stuck = [pod for pod, _, resize in behind if not (resize and observed.resizes)]
    for pod, replica, resize in behind:
        if resize and observed.resizes:
            resources = MEMORY.resize(job_kind.trainer(replica))
            yield ResizeContainer(
                pod, job_kind.container, resources, "memory", names.EVENT_MEMORY_NOT_RAISED
            )
    missing = [
        pod for pod in observed.pods if pod.phase != "Running" or not pod.ready or pod.deleting
    ]
    waits = len(observed.pods) < observed.job.nodes or any(pod not in stuck for pod in missing)
    if stuck and not waits and observed.replaceable:
        yield DeletePod(next(iter(missing), stuck[0]))


def _pods_to_resize(observed: Observed, now: float) -> Iterator[tuple[Pod, Replica, bool]]:
    """Pods that have less than their raised template states, and whether to try a resize."""
    for replica in _managed_replicas(observed):
        trainer = _job_kind(observed).trainer(replica)
        if MEMORY.stated(observed.job.manifest, replica.key, trainer) is None:
            continue
        for pod in observed.pods:
            if pod.replica_type != replica.kind or pod.deleting or pod.phase != "Running":
                continue
            has = _trainer(pod, observed)
            if has is None or not has.memory_limit:
                continue
            if quantities.parse_bytes(has.memory_limit) < (MEMORY.limit_of(trainer) or 0):
                yield pod, replica, True
            elif _refused_by_node(pod, now):
                yield pod, replica, False


def _refused_by_node(pod: Pod, now: float) -> bool:
    late = now - pod.resize_since > DEFERRED_SECONDS
    return pod.resize == "Infeasible" or (pod.resize == "Deferred" and late)


def _trainer(pod: Pod, observed: Observed) -> ContainerStatus | None:
    name = _job_kind(observed).container
    return next((one for one in pod.containers if one.name == name), None)


def _make_raised_event(
    replica: Replica, limits: tuple[int, int], reason: str, observed: Observed, now: float
) -> Event:
    how = "in place" if observed.resizes else _without_resize(observed)
    old, new = map(quantities.format_bytes, limits)
    most = quantities.format_bytes(observed.policy.max_memory)
    message = (
        f"memory limit of {replica.key} replicas {old} -> {new}, {how}: {reason} "
        f"(memory.max is {most})"
    )
    return Event(names.EVENT_MEMORY_RAISED, message, at=now)


def _without_resize(observed: Observed) -> str:
    if observed.replaceable:
        return "by replacing the pods, one at a time"
    return (
        "for pods that are made anew: this Kubernetes cannot resize a pod that runs, and a TFJob "
        "may fail with a pod that is deleted; suspend and resume the job to give it to all"
    )


def _make_not_raised_event(
    replica: Replica, limit: int, reason: str, observed: Observed, now: float
) -> Event:
    if not observed.policy.max_memory:
        key = f"{names.PREFIX}memory.max"
        reason = (
            f"annotation {key} is not there: set the most that it may be raised to, such as 64Gi"
        )
    message = (
        f"memory limit of {replica.key} replicas stays {quantities.format_bytes(limit)} after "
        f"a kill: {reason}"
    )
    return Event(names.EVENT_MEMORY_NOT_RAISED, message, warning=True, at=now)
