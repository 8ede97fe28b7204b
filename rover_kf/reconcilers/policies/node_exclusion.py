# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Nodes that a job keeps away from, since training could not go on there; pure.

What the coordinator or Kubernetes says of a node is remembered in the job's annotation, the job's
pod templates leave the node out, and pods that are on it are replaced. A node comes back after the
policy's time, or sooner if the job cannot have its fewest pods without it.

A check of a job's nodes is also judged beside what the checks of other jobs showed. The coordinator
knows its own job alone. Of two nodes it cannot tell which one slows the other down; a node that had
a bad pair in another job, too, is the one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from rover_kf.api import names
from rover_kf.api.faults.node_check_messages import FAULTY, SLOW, NodeVerdict
from rover_kf.api.jobs import Event, Pod
from rover_kf.api.status import FaultyNode
from rover_kf.elastic.failures.classify import classify_pod
from rover_kf.elastic.failures.rule import REPLACE_NODE, ExitEvidence
from rover_kf.elastic.node_check.verdict import CheckEvidence, pod_verdicts
from rover_kf.injection import node_affinity
from rover_kf.job_kinds.registry import kind_of_job
from rover_kf.reconcilers.plan import (
    Cordon,
    DeletePod,
    EmitJobEvent,
    Observed,
    PatchJob,
    ReconcilePlan,
)
from rover_kf.reconcilers.status_annotation import ExcludedNode, JobStatus

MAX_NODES = 8
"""Nodes at a time; the annotation is bounded, and so is what a mistake may cost."""
UNSCHEDULABLE_SECONDS = 60.0
"""How long a pod may find no node while the job lacks its fewest; then the nodes come back."""
POLL_SECONDS = 5.0
"""Between two looks while the job lacks them."""
MAX_REASON = 120
_ENDED = ("Succeeded", "Failed")


def apply(plan: ReconcilePlan, observed: Observed, now: float) -> ReconcilePlan:
    """The plan with unfit nodes left out, their pods replaced, and nodes taken back."""
    if observed.job.finished or observed.job.deleting or not observed.replaceable:
        return plan
    before = plan.status.excluded_nodes
    kept = tuple(one for one in before if one.until > now)
    new = _new_exclusions(observed, kept, now)
    after, events = (*kept, *new), [_make_excluded_event(one, now) for one in new]
    if _is_short_of_pods(observed, now) and any(not one.readmitted_at for one in after):
        events.append(_make_readmitted_event(after, now))
        after = tuple(
            dataclasses.replace(one, readmitted_at=one.readmitted_at or now) for one in after
        )
    memory = dataclasses.replace(plan.status, excluded_nodes=after)
    out = [one.node for one in after if not one.readmitted_at]
    plan = plan.with_effects(*_plan_cordons(observed, new), status=memory)
    if patches := _patches(observed, out, [one.node for one in before if one.node not in out]):
        plan = plan.with_effects(PatchJob(memory, {kind_of_job(observed.job).specs: patches}))
    replaced = map(DeletePod, _pods_to_replace(observed, out, memory))
    return plan.with_effects(*map(EmitJobEvent, events), *replaced)


def delay(observed: Observed, job_status: JobStatus, now: float) -> float | None:
    """Seconds until the next look; None if no node is avoided."""
    if not job_status.excluded_nodes:
        return None
    waits = any(pod.unschedulable for pod in observed.pods)
    return POLL_SECONDS if waits else min(one.until for one in job_status.excluded_nodes) - now


def _new_exclusions(
    observed: Observed, retained: tuple[ExcludedNode, ...], now: float
) -> tuple[ExcludedNode, ...]:
    """Nodes that were found unfit and are not known as such."""
    found: dict[str, ExcludedNode] = {}
    room = min(MAX_NODES, max(len(observed.pods) // 2, 1)) - len(retained)
    known = {one.node for one in retained} | _only_node(observed)
    for unfit in (*_reported_nodes(observed), *_kubernetes_faults(observed, now)):
        until = unfit.observed_at + observed.policy.sections.failures.node_avoid
        if unfit.node not in known and unfit.node not in found and until > now and room > 0:
            reason = f"{unfit.pod}: {unfit.kind}: {unfit.reason}"[:MAX_REASON]
            found[unfit.node] = ExcludedNode(unfit.node, until, reason)
            room -= 1
    return tuple(found.values())


def _plan_cordons(observed: Observed, new: tuple[ExcludedNode, ...]) -> list[Cordon]:
    """Of nodes that broke or failed a check; what else a pod met there may be of its own making."""
    broken = {one.node for one in _reported_nodes(observed)}
    found = [one for one in new if one.node in broken]
    if observed.policy.sections.nodes.cordon == "off":
        return []
    return [Cordon(one.node, one.reason) for one in found]


def _reported_nodes(observed: Observed) -> Iterator[FaultyNode]:
    """Nodes that the coordinator reports, of those that hold a pod of the job.

    A coordinator is a tenant's: it may name any node, and any other object.
    """
    own = {pod.node for pod in observed.pods if pod.node}
    reported = observed.status.faulty_nodes if observed.status else ()
    return (one for one in (*reported, *faulty_nodes(observed)) if one.node in own)


def _only_node(observed: Observed) -> set[str]:
    """The node of all the job's pods, if there are several.

    To leave it would cost everything that is in memory, and on a machine alone cost it for ever.
    """
    nodes = [pod.node for pod in observed.pods if pod.node and pod.phase not in _ENDED]
    return set(nodes) if len(nodes) > 1 and len(set(nodes)) == 1 else set()


def _kubernetes_faults(observed: Observed, now: float) -> list[FaultyNode]:
    """A pod that its node ended or refused; what Kubernetes does on purpose is no fault of it."""
    found = []
    for pod in observed.pods:
        verdict = classify_pod(ExitEvidence(pod_reasons=pod.reasons, message=pod.message))
        if verdict and verdict.action == REPLACE_NODE and verdict.consumes_budget and pod.node:
            found.append(FaultyNode(pod.node, pod.name, verdict.kind, verdict.reason, now))
    return found


def _is_short_of_pods(observed: Observed, now: float) -> bool:
    """Whether the job has fewer pods than it needs, and one finds no node."""
    placed = [
        pod for pod in observed.pods if pod.node and not pod.deleting and pod.phase not in _ENDED
    ]
    masters = observed.job.replicas.get("master", 0)
    waits = any(
        pod.unschedulable and now - pod.unschedulable_since >= UNSCHEDULABLE_SECONDS
        for pod in observed.pods
    )
    return waits and len(placed) < observed.policy.min + masters


def _pods_to_replace(observed: Observed, out: list[str], job_status: JobStatus) -> list[Pod]:
    """Pods on nodes that are left out, and pods that wait for a node with an old template."""
    given_up = max((one.readmitted_at for one in job_status.excluded_nodes), default=0.0)
    return [
        pod
        for pod in observed.pods
        if not pod.deleting
        and pod.phase not in _ENDED
        and (pod.node in out or (pod.unschedulable and pod.unschedulable_since < given_up))
    ]


def _patches(observed: Observed, out: list[str], back: list[str]) -> dict[str, object]:
    """Merge patches of the replica specs whose templates are to change."""
    found: dict[str, object] = {}
    for replica in kind_of_job(observed.job).replicas(observed.job.manifest):
        template = replica.spec["template"]
        pod = node_affinity.exclude_nodes(template["spec"], out, readmit=back)
        if pod is not None:
            found[replica.key] = {"template": {"spec": pod}}
    return found


def _make_excluded_event(excluded: ExcludedNode, now: float) -> Event:
    message = (
        f"{excluded.node} is left out of this job for {excluded.until - now:.0f} s and its pods "
        f"there are replaced (failures.node-avoid): {excluded.reason}"
    )
    return Event(names.EVENT_NODE_AVOIDED, message, warning=True, at=now)


def _make_readmitted_event(excluded: tuple[ExcludedNode, ...], now: float) -> Event:
    message = (
        f"{', '.join(one.node for one in excluded)} may be used again: without, the job has found "
        f"no room for its fewest pods for {UNSCHEDULABLE_SECONDS:.0f} s"
    )
    return Event(names.EVENT_NODE_AVOIDANCE_ENDED, message, warning=True, at=now)


KIND = "preflight"
"""Of an unfit node."""


def collect_events(observed: Observed, now: float) -> Iterator[tuple[str, Event]]:
    """Events about nodes that only the history shows to be bad, each with its key."""
    for one, at in _new_verdicts(observed):
        message = f"{one.pod} on {one.node} is {one.verdict}, as other jobs show: {one.reason}"
        event = Event(names.EVENT_NODE_CHECK_FAILED, message, warning=True, at=now)
        yield f"unfit:{one.pod}:{at:.0f}", event


def faulty_nodes(observed: Observed) -> tuple[FaultyNode, ...]:
    """Nodes that the job shall leave for it, by its policy."""
    if observed.policy.sections.preflight.mode != "exclude":
        return ()
    return tuple(
        FaultyNode(one.node, one.pod, KIND, f"{one.verdict}: {one.reason}", at)
        for one, at in _new_verdicts(observed)
        if one.node
    )


def _new_verdicts(observed: Observed) -> Iterator[tuple[NodeVerdict, float]]:
    check = observed.status.preflight if observed.status else None
    if check is None:
        return
    known = {one.pod for one in check.verdicts if one.verdict in (SLOW, FAULTY)}
    for one in pod_verdicts(CheckEvidence(check.pods, check.pairs, observed.fleet)):
        if one.verdict in (SLOW, FAULTY) and one.pod not in known:
            yield one, check.at
