# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that the kernel holds back: their CPU limit raised while they run; pure.

Parameter servers and workers of a TFJob, and the pods of a PyTorchJob. As with memory, what the
template states is what all pods of the type shall have, and a pod that has less is resized in
place. No pod is replaced for it: where Kubernetes cannot resize, the template alone is changed, and
the Event says how pods get it.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Mapping, Sequence

from rover_kf.api import names
from rover_kf.api.faults.limit_raises import CpuLimitRaises, CpuUse
from rover_kf.api.jobs import Event, Pod
from rover_kf.api.samples import Throughput
from rover_kf.elastic.resources.cpu_limit import (
    STARVED,
    CpuRaiseDecision,
    CpuRaiseLimits,
    TrainingRate,
    decide_raise,
)
from rover_kf.injection import quantities
from rover_kf.injection.limits.manifest_cpu import CPU
from rover_kf.injection.limits.raised_limit import LimitRaise
from rover_kf.job_kinds.job_kind import JobKind, Replica
from rover_kf.job_kinds.registry import kind_of
from rover_kf.reconcilers import policy_source
from rover_kf.reconcilers.plan import (
    CpuRaises,
    EmitJobEvent,
    Observed,
    PatchJob,
    ReconcilePlan,
    ResizeContainer,
)
from rover_kf.reconcilers.status_annotation import JobStatus
from rover_kf.scaling.policy import AUTO, OFF

WINDOWS = 2
"""Throughput windows that have to lie between two raises, whole."""
SETTLE_SECONDS = 5.0
"""That a raise takes to reach the kernel: windows that begin sooner do not count."""
DEFERRED_SECONDS = 30.0
"""How long a node may put a resize off for want of room before that is told."""
MAX_WINDOWS = 5
"""For so many windows a raise is waited for before more replicas are reckoned with, at most."""
SERVER = "ps"
_SERVED = (SERVER, "worker")
"""Of a job with parameter servers, in the order in which they are looked at."""
UNEVEN = 2.0
"""So many times as busy as any other PS are those on which the work lies unevenly."""
MAX_REASON = 160
"""Of why a limit was raised, as the annotation keeps it."""


def apply(plan: ReconcilePlan, observed: Observed, now: float) -> ReconcilePlan:
    """The plan with limits raised, and with pods brought to their limits."""
    for replica in _managed_replicas(observed):
        growth = _decide_raise(replica, observed, plan.status, now)
        if growth is not None:
            plan = _execute(plan, replica, growth, observed, now)
        plan = plan.with_effects(*_plan_resizes(replica, observed))
        plan = _emit_stuck(plan, replica, observed, now)
    return dataclasses.replace(plan, cpu=raises(observed, plan.status, now))


def needs_node_data(observed: Observed, job_status: JobStatus, now: float) -> bool:
    """Whether it matters what the nodes have, and whether pods can be resized."""
    allowed = not policy_source.cpu_raise_denial(observed.policy)
    for replica in _managed_replicas(observed):
        growth = _decide_raise(replica, observed, job_status, now) if allowed else None
        if (growth is not None and growth.limit) or any(_pods_to_resize(replica, observed)):
            return True
    return False


def raises(seen: Observed, memory: JobStatus, now: float) -> CpuRaises:
    """What the raises so far mean to other policies."""
    newest = max(memory.cpu, key=lambda raised: raised.raised_at, default=None)
    behind = (
        pod.name for replica in _managed_replicas(seen) for pod in _pods_to_resize(replica, seen)
    )
    return CpuRaises(
        settled_at=newest.raised_at + SETTLE_SECONDS if newest and newest.raised_at else 0.0,
        settling=_settling(seen, memory, now),
        behind=tuple(sorted(behind)),
        rate=newest.rate if newest else 0.0,
    )


def _settling(seen: Observed, memory: JobStatus, now: float) -> float | None:
    """Seconds since a raise whose effect is not seen yet; None if there is none.

    More cores come before more replicas: what they bring is measured first.
    """
    raised = max((one.raised_at for one in memory.cpu), default=0.0)
    late = now - raised > SETTLE_SECONDS + MAX_WINDOWS * seen.policy.window_seconds
    if not raised or late or len(_full_windows(seen, raised + SETTLE_SECONDS, now)) >= WINDOWS:
        return None
    return now - raised


def _managed_replicas(observed: Observed) -> tuple[Replica, ...]:
    """Replica types that are looked after: none while the job does not train."""
    job = observed.job
    if job.inactive:
        return ()
    job_kind = kind_of(job.manifest)
    found = job_kind.replicas(job.manifest)
    if job_kind.elastic:
        return found
    served = {one.kind: one for one in found if one.kind in observed.standalone_types}
    return tuple(served[kind] for kind in _SERVED if kind in served and SERVER in served)


def _decide_raise(
    replica: Replica, observed: Observed, job_status: JobStatus, now: float
) -> CpuRaiseDecision | None:
    """What follows from what pods take; None while there is nothing to tell it from."""
    job_kind = kind_of(observed.job.manifest)
    limit = CPU.limit_of(job_kind.trainer(replica))
    if limit is None or observed.policy.mode == OFF:
        return None
    uses = _uses(replica, observed, job_kind)
    known = (one for one in job_status.cpu if one.replica_type == replica.kind)
    state = next(known, CpuLimitRaises(replica.kind))
    # What a server waits for may be a worker, and the other way round: one after the other.
    related = (state,) if job_kind.elastic else job_status.cpu
    raised = max((one.raised_at for one in related), default=0.0)
    pace = _step_times(observed, raised + SETTLE_SECONDS if raised else 0.0, now)
    if pace is None or not uses:
        return None
    node = max(map(quantities.parse_millicores, observed.node_cpu), default=None)
    if node is not None:
        node = max(node - CPU.other_containers_request(replica, job_kind), 0)
    bounds = CpuRaiseLimits(observed.policy.max_cpu or None, node)
    return decide_raise(uses, state, limit, bounds, training_rate=pace, now=now)


def _uses(replica: Replica, observed: Observed, job_kind: JobKind) -> dict[str, CpuUse]:
    """Of its pods whose limit the kernel knows, as their sidecars tell."""
    pods = {
        pod.name
        for pod in observed.pods
        if pod.replica_type == replica.kind and _current_limit(pod, job_kind) and not pod.deleting
    }
    if replica.kind in observed.standalone_types:
        servers = (
            (name, status.cpu) for name, status in sorted(observed.standalone_statuses.items())
        )
        return {name: use for name, use in servers if use is not None and name in pods}
    told = observed.status.pod_cpus if observed.status else ()
    return {one.pod: one.use for one in told if one.pod in pods}


def _step_times(observed: Observed, since: float, now: float) -> TrainingRate | None:
    """How the job has trained lately; None while it has not settled since then."""
    whole = _full_windows(observed, since, now)[-WINDOWS:]
    spent = sum(window.ended_at - window.started_at for window in whole)
    if len(whole) < WINDOWS or spent <= 0:
        return None
    rate = sum(window.steps for window in whole) / spent
    waits = statistics.median(window.wait_fraction for window in whole)
    return TrainingRate(rate, whole[-1].nodes, waits)


def _full_windows(observed: Observed, since: float, now: float) -> Sequence[Throughput]:
    """Windows of the world that trains now, begun since then."""
    status = observed.status
    if status is None or status.phase != "training":
        return ()
    world, skew = (status.nodes, status.world_size), now - status.now
    found: list[Throughput] = []
    for window in reversed(status.windows):
        if (window.nodes, window.world_size) != world or window.started_at + skew < since:
            break
        found.append(window)
    return found[::-1]


def _execute(
    plan: ReconcilePlan, replica: Replica, growth: CpuRaiseDecision, observed: Observed, now: float
) -> ReconcilePlan:
    job_kind = kind_of(observed.job.manifest)
    limit = CPU.limit_of(job_kind.trainer(replica)) or 0
    if not growth.throttled_pods:
        return plan
    waits = (_step_times(observed, 0.0, now) or TrainingRate(0.0)).wait_fraction
    why = _describe_throttling(replica, growth.throttled_pods, waits)
    more = _describe_imbalance(replica, growth.throttled_pods, _uses(replica, observed, job_kind))
    refusal = growth.denial_reason or policy_source.cpu_raise_denial(observed.policy)
    if growth.limit is None or refusal:
        limits = (limit, growth.limit)
        event = _make_not_raised_event(
            replica, limits, refusal, why, more, observed=observed, now=now
        )
        return plan.emit_once(f"cpu:{replica.kind}:{limit}:{event.reason[:4]}", event)
    state = dataclasses.replace(growth.state, reason=why[:MAX_REASON])
    others = (one for one in plan.status.cpu if one.replica_type != replica.kind)
    memory = dataclasses.replace(plan.status, cpu=(*others, state))
    known = CPU.raised(observed.job.manifest)
    stated = CPU.stated(observed.job.manifest, replica.key, job_kind.trainer(replica)) or limit
    text = CPU.annotation({**known, replica.key: LimitRaise(stated, growth.limit)})
    patch = CPU.patch(replica, job_kind, growth.limit)
    limits = (limit, growth.limit)
    event = _make_raised_event(replica, limits, state, more, observed=observed, now=now)
    raising = PatchJob(memory, patch, {CPU.annotation_key: text})
    return plan.with_effects(raising, EmitJobEvent(event), status=memory)


def _plan_resizes(replica: Replica, observed: Observed) -> Iterator[ResizeContainer]:
    """What gives pods their limits."""
    if not observed.resizes:
        return
    job_kind = kind_of(observed.job.manifest)
    for pod in _pods_to_resize(replica, observed):
        resources = CPU.resize(job_kind.trainer(replica))
        yield ResizeContainer(pod, job_kind.container, resources, "CPU", names.EVENT_CPU_NOT_RAISED)


def _pods_to_resize(replica: Replica, observed: Observed) -> Iterator[Pod]:
    """Pods that have less than their raised template states."""
    job_kind = kind_of(observed.job.manifest)
    trainer = job_kind.trainer(replica)
    if CPU.stated(observed.job.manifest, replica.key, trainer) is None:
        return
    for pod in observed.pods:
        if pod.replica_type != replica.kind or pod.deleting or pod.phase != "Running":
            continue
        has = _current_limit(pod, job_kind)
        if has and quantities.parse_millicores(has) < (CPU.limit_of(trainer) or 0):
            yield pod


def _current_limit(pod: Pod, job_kind: JobKind) -> str:
    """The limit that the pod's trainer states; empty if none, or where none is enforced."""
    trainers = (one for one in pod.containers if one.name == job_kind.container)
    return next((one.cpu_limit for one in trainers), "")


def _emit_stuck(
    plan: ReconcilePlan, replica: Replica, observed: Observed, now: float
) -> ReconcilePlan:
    """Of pods whose nodes have no room for what they shall have."""
    trainer = kind_of(observed.job.manifest).trainer(replica)
    if CPU.stated(observed.job.manifest, replica.key, trainer) is None:
        return plan
    for pod in observed.pods:
        late = now - pod.resize_since > DEFERRED_SECONDS
        stuck = pod.resize == "Infeasible" or (pod.resize == "Deferred" and late)
        if pod.replica_type != replica.kind or not stuck:
            continue
        message = (
            f"{pod.name} does not get the CPU that its template states: {pod.node} has no room for "
            f"it; give the job's {replica.key} replicas another node (suspend, nodeSelector, "
            "resume), or make room there"
        )
        event = Event(names.EVENT_CPU_NOT_RAISED, message, warning=True, at=now)
        plan = plan.emit_once(f"cpu-room:{pod.name}", event)
    return plan


def _make_raised_event(
    replica: Replica,
    limits: tuple[int, int],
    state: CpuLimitRaises,
    more: str,
    *,
    observed: Observed,
    now: float,
) -> Event:
    """Of a limit that is raised now; limits are before and after, in thousandths of a core."""
    old, new = map(quantities.format_millicores, limits)
    most = quantities.format_millicores(observed.policy.max_cpu)
    message = (
        f"CPU limit of {replica.key} replicas {old} -> {new}, {_how_raised(observed)}: "
        f"{state.reason}, at {state.rate:.3g} steps/s (cpu.max is {most}){more}"
    )
    return Event(names.EVENT_CPU_RAISED, message, at=now)


def _make_not_raised_event(
    replica: Replica,
    limits: tuple[int, int | None],
    refused: str,
    short: str,
    more: str,
    *,
    observed: Observed,
    now: float,
) -> Event:
    """Of a limit that stays as it is, though pods are short."""
    had, wanted = limits
    old = quantities.format_millicores(had)
    if observed.policy.mode != AUTO and wanted is not None:
        new = quantities.format_millicores(wanted)
        message = (
            f"{short}: steps wait for it. scaling.mode auto with cpu.max would give {replica.key} "
            f"replicas {new} in place of {old}{more}"
        )
        server = replica.kind == SERVER
        reason = names.EVENT_SERVER_CPU_THROTTLED if server else names.EVENT_WORKER_CPU_THROTTLED
        return Event(reason, message, warning=True, at=now)
    message = f"CPU limit of {replica.key} replicas stays {old}, though {short}: {refused}{more}"
    return Event(names.EVENT_CPU_NOT_RAISED, message, warning=True, at=now)


def _describe_throttling(replica: Replica, short: Mapping[str, CpuUse], waits: float) -> str:
    """What is seen of the pods that are short, at least one, in a sentence.

    ``waits`` is the share of a step that is spent waiting for data.
    """
    worst, use = max(short.items(), key=lambda item: item[1].throttled)
    among = f" ({len(short)} of {replica.replicas} {replica.key})" if replica.replicas > 1 else ""
    starves = f", and {waits:.0%} of a step waits for data" if waits > STARVED else ""
    return (
        f"{worst}{among} had used up its {quantities.format_millicores(round(use.limit * 1000))} "
        f"in {use.throttled:.0%} of the last {use.seconds:.0f} s{starves}"
    )


def _describe_imbalance(
    replica: Replica, short: Mapping[str, CpuUse], uses: Mapping[str, CpuUse]
) -> str:
    """What is told where the work lies on some parameter servers alone; empty where it does not.

    ``short`` are those that are held back, ``uses`` all that told.
    """
    others = [use.cores for pod, use in uses.items() if pod not in short]
    if replica.kind != SERVER or not others:
        return ""
    least = min(use.cores for use in short.values())
    if max(others) * UNEVEN > least:
        return ""
    busy = quantities.format_millicores(round(1000 * max(others)))
    return (
        f". The work lies unevenly: no other PS kept more than {busy} busy; a partitioner of the "
        "strategy (tf.distribute.experimental.partitioners) spreads large variables over all PS"
    )


def _how_raised(observed: Observed) -> str:
    if observed.resizes:
        return "in place"
    if not observed.replaceable:
        return (
            "for pods that are made anew: this Kubernetes cannot resize a pod that runs, and a "
            "TFJob may fail with a pod that is deleted; suspend and resume the job to give it to "
            "all; with its state on storage and enough left to do that is done"
        )
    return (
        "for pods that are made anew: this Kubernetes cannot resize a pod that runs; suspend and "
        "resume the job to give it to all"
    )
