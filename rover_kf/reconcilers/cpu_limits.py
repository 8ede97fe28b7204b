# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Parameter servers that the kernel holds back: their CPU limit raised while they run; pure.

As with memory, what the template states is what all pods of the type shall have, and a pod that
has less is resized in place. No pod of a TFJob is replaced: where Kubernetes cannot resize, the
template alone is changed, and the Event says how its pods get it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from rover_kf.api import names
from rover_kf.api.cpu import CpuGrowth, CpuUse
from rover_kf.api.jobs import Event, Pod
from rover_kf.elastic.cpu_growth import Bounds, Growth, decide
from rover_kf.injection import quantities
from rover_kf.injection.adapters import TENSORFLOW, Replica
from rover_kf.injection.cpu_limit import CPU
from rover_kf.injection.resource_limit import Raise
from rover_kf.reconcilers.plan import Enlarge, Observed, Plan, RaiseLimit, Tell
from rover_kf.reconcilers.status import JobStatus
from rover_kf.scaling.policy import AUTO, OFF

SERVER = "ps"
WINDOWS = 2
"""Throughput windows that have to lie between two raises, whole."""
SETTLE_SECONDS = 5.0
"""That a raise takes to reach the kernel: windows that begin sooner do not count."""
DEFERRED_SECONDS = 30.0
"""How long a node may put a resize off for want of room before that is told."""


def extend(made: Plan, seen: Observed, now: float) -> Plan:
    """The plan with limits raised, and with pods brought to their limits."""
    for replica in _servers(seen):
        growth = _growth(replica, seen, made.status, now)
        if growth is not None:
            made = _carry_out(made, replica, growth, seen, now)
        made = made.then(*_bring_up(replica, seen), status=made.status)
        made = _tell_stuck(made, replica, seen, now)
    return made


def asks(seen: Observed, memory: JobStatus, now: float) -> bool:
    """Whether it matters what the nodes have, and whether pods can be resized."""
    for replica in _servers(seen):
        growth = None if _refusal(seen) else _growth(replica, seen, memory, now)
        if (growth is not None and growth.limit) or any(_behind(replica, seen)):
            return True
    return False


def _servers(seen: Observed) -> tuple[Replica, ...]:
    """Replica types that are looked after: none while the job does not train."""
    job = seen.job
    if SERVER not in seen.alone or job.finished or job.suspended or job.deleting:
        return ()
    found = TENSORFLOW.replicas(job.manifest)
    return tuple(one for one in found if one.kind == SERVER)


def _growth(replica: Replica, seen: Observed, memory: JobStatus, now: float) -> Growth | None:
    """What follows from what servers take; None while there is nothing to tell it from."""
    limit = CPU.of(TENSORFLOW.trainer(replica))
    uses, state = _uses(replica, seen), _state(replica, memory)
    rate = _rate(seen, state.at + SETTLE_SECONDS if state.at else 0.0, now)
    if limit is None or seen.policy.mode == OFF or rate is None or not uses:
        return None
    node = max(map(quantities.parse_millicores, seen.node_cpu), default=None)
    if node is not None:
        node = max(node - CPU.beside(replica, TENSORFLOW), 0)
    bounds = Bounds(seen.policy.most_cpu or None, node)
    return decide(uses, state, limit, bounds, rate=rate, now=now)


def _uses(replica: Replica, seen: Observed) -> dict[str, CpuUse]:
    """Of its pods, as their own sidecars tell."""
    pods = {pod.name for pod in seen.pods if pod.replica_type == replica.kind}
    told = ((name, status.cpu) for name, status in sorted(seen.servers.items()) if name in pods)
    return {name: use for name, use in told if use is not None}


def _state(replica: Replica, memory: JobStatus) -> CpuGrowth:
    known = {state.replica_type: state for state in memory.cpu}
    return known.get(replica.kind, CpuGrowth(replica.kind))


def _rate(seen: Observed, since: float, now: float) -> float | None:
    """Steps a second that the chief has made lately; None while it has not settled since then."""
    status = seen.status
    if status is None or status.phase != "training":
        return None
    skew = now - status.now
    whole = [window for window in status.windows if window.started_at + skew >= since][-WINDOWS:]
    spent = sum(window.ended_at - window.started_at for window in whole)
    if len(whole) < WINDOWS or spent <= 0:
        return None
    return sum(window.steps for window in whole) / spent


def _carry_out(made: Plan, replica: Replica, growth: Growth, seen: Observed, now: float) -> Plan:
    limit = CPU.of(TENSORFLOW.trainer(replica)) or 0
    if not growth.short:
        return made
    refusal = growth.refusal or _refusal(seen)
    if growth.limit is None or refusal:
        event = _left(replica, (limit, growth.limit), refusal, growth.short, seen=seen, now=now)
        key = f"cpu:{replica.kind}:{limit}:{event.reason[:4]}"
        if made.status.has_told(key):
            return made
        return made.then(Tell(event), status=made.status.with_told(key))
    others = (one for one in made.status.cpu if one.replica_type != replica.kind)
    memory = dataclasses.replace(made.status, cpu=(*others, growth.state))
    known = CPU.raised(seen.job.manifest)
    stated = CPU.stated(seen.job.manifest, replica.key, TENSORFLOW.trainer(replica)) or limit
    text = CPU.annotation({**known, replica.key: Raise(stated, growth.limit)})
    patch = CPU.patch(replica, TENSORFLOW, growth.limit)
    event = _raised(replica, (limit, growth.limit), growth, seen, now)
    raising = RaiseLimit(patch, text, memory, names.CPU_RAISED_ANNOTATION)
    return made.then(raising, Tell(event), status=memory)


def _bring_up(replica: Replica, seen: Observed) -> Iterator[Enlarge]:
    """What gives pods their limits."""
    if not seen.resizes:
        return
    resources = CPU.resize(TENSORFLOW.trainer(replica)) if any(_behind(replica, seen)) else {}
    for pod in _behind(replica, seen):
        yield Enlarge(
            pod, TENSORFLOW.container, resources, "CPU", refused_as=names.EVENT_CPU_NOT_RAISED
        )


def _behind(replica: Replica, seen: Observed) -> Iterator[Pod]:
    """Pods that have less than their raised template states."""
    trainer = TENSORFLOW.trainer(replica)
    if CPU.stated(seen.job.manifest, replica.key, trainer) is None:
        return
    for pod in seen.pods:
        if pod.replica_type != replica.kind or pod.deleting or pod.phase != "Running":
            continue
        trainers = (one for one in pod.containers if one.name == TENSORFLOW.container)
        has = next((one.cpu_limit for one in trainers), "")
        if has and quantities.parse_millicores(has) < (CPU.of(trainer) or 0):
            yield pod


def _tell_stuck(made: Plan, replica: Replica, seen: Observed, now: float) -> Plan:
    """Of pods whose nodes have no room for what they shall have."""
    trainer = TENSORFLOW.trainer(replica)
    if CPU.stated(seen.job.manifest, replica.key, trainer) is None:
        return made
    for pod in seen.pods:
        late = now - pod.resize_since > DEFERRED_SECONDS
        key = f"cpu-room:{pod.name}"
        stuck = pod.resize == "Infeasible" or (pod.resize == "Deferred" and late)
        if pod.replica_type != replica.kind or not stuck or made.status.has_told(key):
            continue
        message = (
            f"{pod.name} does not get the CPU that its template states: {pod.node} has no room for "
            "it; give the job's PS another node (suspend, nodeSelector, resume), or make room there"
        )
        event = Event(names.EVENT_CPU_NOT_RAISED, message, warning=True, at=now)
        made = made.then(Tell(event), status=made.status.with_told(key))
    return made


def _refusal(seen: Observed) -> str:
    """Why the policy lets nothing be raised; empty where it does."""
    if seen.policy.mode == AUTO and not seen.policy.most_cpu:
        return f"annotation {names.PREFIX}cpu.max is not there: set the most that it may be, as 8"
    return "" if seen.policy.mode == AUTO else "advice"


def _raised(
    replica: Replica, limits: tuple[int, int], growth: Growth, seen: Observed, now: float
) -> Event:
    old, new = map(quantities.format_millicores, limits)
    how = "in place" if seen.resizes else (
        "for pods that are made anew: this Kubernetes cannot resize a pod that runs, and a TFJob "
        "may fail with a pod that is deleted; suspend and resume the job to give it to all"
    )  # fmt: skip
    most = quantities.format_millicores(seen.policy.most_cpu)
    message = (
        f"CPU limit of {replica.key} replicas {old} -> {new}, {how}: "
        f"{_why(growth.short, seen)}, at {growth.state.rate:.3g} steps/s (cpu.max is {most})"
    )
    return Event(names.EVENT_CPU_RAISED, message, at=now)


def _left(
    replica: Replica,
    limits: tuple[int, int | None],
    refusal: str,
    short: Mapping[str, CpuUse],
    *,
    seen: Observed,
    now: float,
) -> Event:
    had, wanted = limits
    old, why = quantities.format_millicores(had), _why(short, seen)
    if seen.policy.mode != AUTO and wanted is not None:
        new = quantities.format_millicores(wanted)
        message = (
            f"{why}: steps wait for it. scaling.mode auto with cpu.max would give {replica.key} "
            f"replicas {new} in place of {old}"
        )
        return Event(names.EVENT_SERVER_SHORT, message, warning=True, at=now)
    message = f"CPU limit of {replica.key} replicas stays {old}, though {why}: {refusal}"
    return Event(names.EVENT_CPU_NOT_RAISED, message, warning=True, at=now)


def _why(short: Mapping[str, CpuUse], seen: Observed) -> str:
    worst, use = max(short.items(), key=lambda item: item[1].throttled)
    count = sum(pod.replica_type == SERVER for pod in seen.pods)
    among = f" ({len(short)} of {count} PS)" if count > 1 else ""
    return (
        f"{worst}{among} had used up its {quantities.format_millicores(round(use.limit * 1000))} "
        f"in {use.throttled:.0%} of the last {use.seconds:.0f} s"
    )
