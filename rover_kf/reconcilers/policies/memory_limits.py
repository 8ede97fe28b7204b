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
from rover_kf.api.faults.memory_raises import MemoryGrowth, MemoryKill, MemoryTrend
from rover_kf.api.jobs import Container, Event, Pod
from rover_kf.elastic.resources.memory_limit import Bounds, Growth, Work, decide, foresee
from rover_kf.injection import quantities
from rover_kf.injection.adapters import JobAdapter, Replica, adapter_for
from rover_kf.injection.limits import manifest_memory
from rover_kf.injection.limits.raised_limit import Raise
from rover_kf.reconcilers.plan import Enlarge, Observed, Plan, RaiseLimit, Replace, Tell
from rover_kf.reconcilers.status_annotation import JobStatus
from rover_kf.scaling.decision_input import UNKNOWN_WORK_SECONDS

KILLED_CODE = 137
"""SIGKILL. A container of which a child was killed may end well and be called OOMKilled, too."""
LOOK_SECONDS = 3.0
"""Between two looks at a job whose limit may be raised: its launchers wait for it after a kill."""
MAX_WHY = 160
"""Of why a limit was raised, as the annotation keeps it."""
DEFERRED_SECONDS = 30.0
"""How long a node may put a resize off for want of room; then the pod goes to another one."""


def extend(made: Plan, seen: Observed, now: float) -> Plan:
    """The plan with limits raised after kills, and with pods brought to their limits."""
    if not _looked_after(seen):
        return made
    for replica in _replicas(seen):
        growth = _growth(replica, seen, made.status, now)
        if growth is not None:
            made = _carry_out(made, replica, growth, seen, now)
    return made.then(*_bring_up(seen, now), status=made.status)


def asks(seen: Observed, memory: JobStatus, now: float) -> bool:
    """Whether it matters what the nodes have, and whether pods can be resized."""
    if not _looked_after(seen) or not seen.policy.most_memory:
        return False
    growths = (_growth(one, seen, memory, now) for one in _replicas(seen))
    return any(growth and growth.limit for growth in growths) or any(_behind(seen, now))


def delay(seen: Observed) -> float | None:
    """Seconds until the next look; None if nothing is raised in this job."""
    return LOOK_SECONDS if _looked_after(seen) and seen.policy.most_memory else None


def _looked_after(seen: Observed) -> bool:
    job = seen.job
    return not (job.finished or job.suspended or job.deleting)


def _adapter(seen: Observed) -> JobAdapter:
    return adapter_for(seen.job.manifest)


def _replicas(seen: Observed) -> tuple[Replica, ...]:
    return _adapter(seen).replicas(seen.job.manifest)


def _growth(replica: Replica, seen: Observed, memory: JobStatus, now: float) -> Growth | None:
    """What follows from kills of this type's pods; None if there is no limit to raise."""
    adapter = _adapter(seen)
    limit = manifest_memory.of(adapter.trainer(replica))
    kills, trend = tuple(_kills(replica, seen)), _trend(replica, seen)
    if limit is None or not (kills or trend):
        return None
    node = max(map(quantities.parse_bytes, seen.node_memory), default=None)
    if node is not None:
        node = max(node - manifest_memory.beside(replica, adapter), 0)
    bounds = Bounds(seen.policy.most_memory, node)
    found = decide(kills, _state(replica, memory), limit, bounds, now)
    if found.limit or found.refusal or trend is None or not seen.policy.most_memory:
        return found
    return foresee(trend, found.state, limit, bounds, work=_work(seen), now=now)


def _trend(replica: Replica, seen: Observed) -> MemoryTrend | None:
    """Of the worst pod of the world that such pods belong to."""
    if replica.kind not in seen.alone:
        return seen.status.memory_trend if seen.status else None
    pods = {pod.name for pod in seen.pods if pod.replica_type == replica.kind}
    told = [status.memory_trend for name, status in seen.servers.items() if name in pods]
    return max((one for one in told if one), key=lambda one: one.memory, default=None)


def _work(seen: Observed) -> Work:
    status = seen.status
    if status is None or not status.windows or status.total_steps is None:
        return Work(UNKNOWN_WORK_SECONDS)
    left = max(0, status.total_steps - status.step) * status.windows[-1].step_seconds
    return Work(left, status.restart_seconds)


def _kills(replica: Replica, seen: Observed) -> Iterator[MemoryKill]:
    pods = {pod.name: pod for pod in seen.pods if pod.replica_type == replica.kind}
    for status in (seen.status, *seen.servers.values()):
        if status is not None:
            yield from (kill for kill in status.memory_kills if kill.pod in pods)
    for pod in pods.values():
        trainer = _trainer(pod, seen)
        if trainer is not None and _is_kill(trainer):
            yield MemoryKill(pod.name, trainer.ended_at)


def _is_kill(trainer: Container) -> bool:
    return trainer.ended_by == "OOMKilled" and trainer.exit_code == KILLED_CODE


def _state(replica: Replica, memory: JobStatus) -> MemoryGrowth:
    known = {state.replica_type: state for state in memory.memory}
    return known.get(replica.kind, MemoryGrowth(replica.kind))


def _carry_out(made: Plan, replica: Replica, growth: Growth, seen: Observed, now: float) -> Plan:
    why = _why(replica, growth, seen)
    state = growth.state
    state = dataclasses.replace(state, why=why[:MAX_WHY]) if growth.limit else state
    others = (one for one in made.status.memory if one.replica_type != replica.kind)
    memory = dataclasses.replace(made.status, memory=(*others, state))
    adapter = _adapter(seen)
    trainer = adapter.trainer(replica)
    limit = manifest_memory.of(trainer) or 0
    if growth.limit is not None:
        known = manifest_memory.raised(seen.job.manifest)
        stated = manifest_memory.stated(seen.job.manifest, replica.key, trainer) or limit
        text = manifest_memory.annotation({**known, replica.key: Raise(stated, growth.limit)})
        patch = manifest_memory.patch(replica, adapter, growth.limit)
        event = _raised(replica, (limit, growth.limit), why, seen, now)
        return made.then(RaiseLimit(patch, text, memory), Tell(event), status=memory)
    key = f"memory:{replica.kind}:{limit}"
    if not growth.refusal or memory.has_told(key):
        return dataclasses.replace(made, status=memory)
    event = _refused(replica, limit, growth.refusal, seen, now)
    return made.then(Tell(event), status=memory.with_told(key))


def _bring_up(seen: Observed, now: float) -> Iterator[Enlarge | Replace]:
    """What gives pods their limits; of those that have to go to another node, one."""
    behind, adapter = tuple(_behind(seen, now)), _adapter(seen)
    stuck = [pod for pod, _, resize in behind if not (resize and seen.resizes)]
    for pod, replica, resize in behind:
        if resize and seen.resizes:
            resources = manifest_memory.resize(adapter.trainer(replica))
            yield Enlarge(pod, adapter.container, resources)
    missing = [pod for pod in seen.pods if not _stands(pod)]
    waits = len(seen.pods) < seen.job.nodes or any(pod not in stuck for pod in missing)
    if stuck and not waits and seen.replaceable:
        yield Replace(next(iter(missing), stuck[0]))


def _behind(seen: Observed, now: float) -> Iterator[tuple[Pod, Replica, bool]]:
    """Pods that have less than their raised template states, and whether to try a resize."""
    for replica in _replicas(seen):
        trainer = _adapter(seen).trainer(replica)
        if manifest_memory.stated(seen.job.manifest, replica.key, trainer) is None:
            continue
        for pod in seen.pods:
            if pod.replica_type != replica.kind or pod.deleting or pod.phase != "Running":
                continue
            has = _trainer(pod, seen)
            if has is None or not has.memory_limit:
                continue
            if quantities.parse_bytes(has.memory_limit) < (manifest_memory.of(trainer) or 0):
                yield pod, replica, True
            elif _refused_by_node(pod, now):
                yield pod, replica, False


def _refused_by_node(pod: Pod, now: float) -> bool:
    late = now - pod.resize_since > DEFERRED_SECONDS
    return pod.resize == "Infeasible" or (pod.resize == "Deferred" and late)


def _stands(pod: Pod) -> bool:
    return pod.phase == "Running" and pod.ready and not pod.deleting


def _trainer(pod: Pod, seen: Observed) -> Container | None:
    name = _adapter(seen).container
    return next((one for one in pod.containers if one.name == name), None)


def _why(replica: Replica, growth: Growth, seen: Observed) -> str:
    killed = sorted({kill.pod for kill in _kills(replica, seen)})
    return growth.foreseen or f"the kernel killed for memory in {', '.join(killed)}"


def _raised(
    replica: Replica, limits: tuple[int, int], why: str, seen: Observed, now: float
) -> Event:
    how = "in place" if seen.resizes else _without_resize(seen)
    old, new = map(_text, limits)
    most = _text(seen.policy.most_memory)
    message = (
        f"memory limit of {replica.key} replicas {old} -> {new}, {how}: {why} "
        f"(memory.max is {most})"
    )
    return Event(names.EVENT_MEMORY_RAISED, message, at=now)


def _without_resize(seen: Observed) -> str:
    if seen.replaceable:
        return "by replacing the pods, one at a time"
    return (
        "for pods that are made anew: this Kubernetes cannot resize a pod that runs, and a TFJob "
        "may fail with a pod that is deleted; suspend and resume the job to give it to all"
    )


def _refused(replica: Replica, limit: int, why: str, seen: Observed, now: float) -> Event:
    if not seen.policy.most_memory:
        key = f"{names.PREFIX}memory.max"
        why = f"annotation {key} is not there: set the most that it may be raised to, such as 64Gi"
    message = f"memory limit of {replica.key} replicas stays {_text(limit)} after a kill: {why}"
    return Event(names.EVENT_MEMORY_NOT_RAISED, message, warning=True, at=now)


def _text(count: int) -> str:
    return quantities.format_bytes(count)
