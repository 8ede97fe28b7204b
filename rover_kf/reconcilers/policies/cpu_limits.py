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
from collections.abc import Iterator, Sequence

from rover_kf.api import names
from rover_kf.api.faults.cpu_raises import CpuGrowth, CpuUse
from rover_kf.api.jobs import Event, Pod
from rover_kf.api.samples import Throughput
from rover_kf.elastic.resources.cpu_limit import Bounds, Growth, Pace, decide
from rover_kf.injection import quantities
from rover_kf.injection.adapters import TENSORFLOW, JobAdapter, Replica, adapter_for
from rover_kf.injection.limits.manifest_cpu import CPU
from rover_kf.injection.limits.raised_limit import Raise
from rover_kf.reconcilers.plan import CpuRaises, Enlarge, Observed, Plan, RaiseLimit, Tell
from rover_kf.reconcilers.policies import cpu_events
from rover_kf.reconcilers.status_annotation import JobStatus
from rover_kf.scaling.policy import OFF

WINDOWS = 2
"""Throughput windows that have to lie between two raises, whole."""
SETTLE_SECONDS = 5.0
"""That a raise takes to reach the kernel: windows that begin sooner do not count."""
DEFERRED_SECONDS = 30.0
"""How long a node may put a resize off for want of room before that is told."""
MOST_WINDOWS = 5
"""For so many windows a raise is waited for before more replicas are reckoned with, at most."""
_SERVED = (cpu_events.SERVER, "worker")
"""Of a job with parameter servers, in the order in which they are looked at."""
MAX_WHY = 160
"""Of why a limit was raised, as the annotation keeps it."""


def extend(made: Plan, seen: Observed, now: float) -> Plan:
    """The plan with limits raised, and with pods brought to their limits."""
    for replica in _replicas(seen):
        growth = _growth(replica, seen, made.status, now)
        if growth is not None:
            made = _carry_out(made, replica, growth, seen, now)
        made = made.then(*_bring_up(replica, seen), status=made.status)
        made = _tell_stuck(made, replica, seen, now)
    return dataclasses.replace(made, cpu=raises(seen, made.status, now))


def asks(seen: Observed, memory: JobStatus, now: float) -> bool:
    """Whether it matters what the nodes have, and whether pods can be resized."""
    for replica in _replicas(seen):
        growth = None if cpu_events.refusal(seen) else _growth(replica, seen, memory, now)
        if (growth is not None and growth.limit) or any(_behind(replica, seen)):
            return True
    return False


def raises(seen: Observed, memory: JobStatus, now: float) -> CpuRaises:
    """What the raises so far mean to other policies."""
    newest = max(memory.cpu, key=lambda raised: raised.at, default=None)
    behind = (pod.name for replica in _replicas(seen) for pod in _behind(replica, seen))
    return CpuRaises(
        settled_at=newest.at + SETTLE_SECONDS if newest and newest.at else 0.0,
        settling=_settling(seen, memory, now),
        behind=tuple(sorted(behind)),
        rate=newest.rate if newest else 0.0,
    )


def _settling(seen: Observed, memory: JobStatus, now: float) -> float | None:
    """Seconds since a raise whose effect is not seen yet; None if there is none.

    More cores come before more replicas: what they bring is measured first.
    """
    raised = max((one.at for one in memory.cpu), default=0.0)
    late = now - raised > SETTLE_SECONDS + MOST_WINDOWS * seen.policy.window_seconds
    if not raised or late or len(_whole(seen, raised + SETTLE_SECONDS, now)) >= WINDOWS:
        return None
    return now - raised


def _replicas(seen: Observed) -> tuple[Replica, ...]:
    """Replica types that are looked after: none while the job does not train."""
    job = seen.job
    if job.finished or job.suspended or job.deleting:
        return ()
    adapter = adapter_for(job.manifest)
    found = adapter.replicas(job.manifest)
    if adapter is not TENSORFLOW:
        return found
    served = {one.kind: one for one in found if one.kind in seen.alone}
    return tuple(served[kind] for kind in _SERVED if kind in served and cpu_events.SERVER in served)


def _growth(replica: Replica, seen: Observed, memory: JobStatus, now: float) -> Growth | None:
    """What follows from what pods take; None while there is nothing to tell it from."""
    adapter = adapter_for(seen.job.manifest)
    limit = CPU.of(adapter.trainer(replica))
    if limit is None or seen.policy.mode == OFF:
        return None
    uses, state = _uses(replica, seen, adapter), _state(replica, memory)
    # What a server waits for may be a worker, and the other way round: one after the other.
    known = memory.cpu if adapter is TENSORFLOW else (state,)
    raised = max((one.at for one in known), default=0.0)
    pace = _pace(seen, raised + SETTLE_SECONDS if raised else 0.0, now)
    if pace is None or not uses:
        return None
    node = max(map(quantities.parse_millicores, seen.node_cpu), default=None)
    if node is not None:
        node = max(node - CPU.beside(replica, adapter), 0)
    bounds = Bounds(seen.policy.most_cpu or None, node)
    return decide(uses, state, limit, bounds, pace=pace, now=now)


def _uses(replica: Replica, seen: Observed, adapter: JobAdapter) -> dict[str, CpuUse]:
    """Of its pods whose limit the kernel knows, as their sidecars tell."""
    pods = {
        pod.name
        for pod in seen.pods
        if pod.replica_type == replica.kind and _has(pod, adapter) and not pod.deleting
    }
    if replica.kind in seen.alone:
        servers = ((name, status.cpu) for name, status in sorted(seen.servers.items()))
        return {name: use for name, use in servers if use is not None and name in pods}
    told = seen.status.cpus if seen.status else ()
    return {one.pod: one.use for one in told if one.pod in pods}


def _state(replica: Replica, memory: JobStatus) -> CpuGrowth:
    known = {state.replica_type: state for state in memory.cpu}
    return known.get(replica.kind, CpuGrowth(replica.kind))


def _pace(seen: Observed, since: float, now: float) -> Pace | None:
    """How the job has trained lately; None while it has not settled since then."""
    whole = _whole(seen, since, now)[-WINDOWS:]
    spent = sum(window.ended_at - window.started_at for window in whole)
    if len(whole) < WINDOWS or spent <= 0:
        return None
    rate = sum(window.steps for window in whole) / spent
    waits = statistics.median(window.wait_fraction for window in whole)
    return Pace(rate, whole[-1].nodes, waits)


def _whole(seen: Observed, since: float, now: float) -> Sequence[Throughput]:
    """Windows of the world that trains now, begun since then."""
    status = seen.status
    if status is None or status.phase != "training":
        return ()
    world, skew = (status.nodes, status.world_size), now - status.now
    found: list[Throughput] = []
    for window in reversed(status.windows):
        if (window.nodes, window.world_size) != world or window.started_at + skew < since:
            break
        found.append(window)
    return found[::-1]


def _carry_out(made: Plan, replica: Replica, growth: Growth, seen: Observed, now: float) -> Plan:
    adapter = adapter_for(seen.job.manifest)
    limit = CPU.of(adapter.trainer(replica)) or 0
    if not growth.short:
        return made
    waits = (_pace(seen, 0.0, now) or Pace(0.0)).waits
    why = cpu_events.why(replica, growth.short, waits)
    more = cpu_events.uneven(replica, growth.short, _uses(replica, seen, adapter))
    refusal = growth.refusal or cpu_events.refusal(seen)
    if growth.limit is None or refusal:
        limits = (limit, growth.limit)
        event = cpu_events.left(replica, limits, refusal, why, more, seen=seen, now=now)
        key = f"cpu:{replica.kind}:{limit}:{event.reason[:4]}"
        if made.status.has_told(key):
            return made
        return made.then(Tell(event), status=made.status.with_told(key))
    state = dataclasses.replace(growth.state, why=why[:MAX_WHY])
    others = (one for one in made.status.cpu if one.replica_type != replica.kind)
    memory = dataclasses.replace(made.status, cpu=(*others, state))
    known = CPU.raised(seen.job.manifest)
    stated = CPU.stated(seen.job.manifest, replica.key, adapter.trainer(replica)) or limit
    text = CPU.annotation({**known, replica.key: Raise(stated, growth.limit)})
    patch = CPU.patch(replica, adapter, growth.limit)
    limits = (limit, growth.limit)
    event = cpu_events.raised(replica, limits, state, more, seen=seen, now=now)
    raising = RaiseLimit(patch, text, memory, names.CPU_RAISED_ANNOTATION)
    return made.then(raising, Tell(event), status=memory)


def _bring_up(replica: Replica, seen: Observed) -> Iterator[Enlarge]:
    """What gives pods their limits."""
    if not seen.resizes:
        return
    adapter = adapter_for(seen.job.manifest)
    resources = CPU.resize(adapter.trainer(replica)) if any(_behind(replica, seen)) else {}
    for pod in _behind(replica, seen):
        yield Enlarge(
            pod, adapter.container, resources, "CPU", refused_as=names.EVENT_CPU_NOT_RAISED
        )


def _behind(replica: Replica, seen: Observed) -> Iterator[Pod]:
    """Pods that have less than their raised template states."""
    adapter = adapter_for(seen.job.manifest)
    trainer = adapter.trainer(replica)
    if CPU.stated(seen.job.manifest, replica.key, trainer) is None:
        return
    for pod in seen.pods:
        if pod.replica_type != replica.kind or pod.deleting or pod.phase != "Running":
            continue
        has = _has(pod, adapter)
        if has and quantities.parse_millicores(has) < (CPU.of(trainer) or 0):
            yield pod


def _has(pod: Pod, adapter: JobAdapter) -> str:
    """The limit that the pod's trainer states; empty if none, or where none is enforced."""
    trainers = (one for one in pod.containers if one.name == adapter.container)
    return next((one.cpu_limit for one in trainers), "")


def _tell_stuck(made: Plan, replica: Replica, seen: Observed, now: float) -> Plan:
    """Of pods whose nodes have no room for what they shall have."""
    trainer = adapter_for(seen.job.manifest).trainer(replica)
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
            f"it; give the job's {replica.key} replicas another node (suspend, nodeSelector, "
            "resume), or make room there"
        )
        event = Event(names.EVENT_CPU_NOT_RAISED, message, warning=True, at=now)
        made = made.then(Tell(event), status=made.status.with_told(key))
    return made
