# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that the others wait for: replaced, where the job's policy says so; pure.

All ranks step as fast as the slowest. What makes a rank slow by itself is often its node (a
throttled processor, a neighbour), so its successor keeps away from there, if the others would be
faster without any. A replacement costs a planned change, in which no step is lost, and the pod's
memory; so it is done one at a time, from a whole world, while another pod has the state, and so
many times in a job's life.
"""

from __future__ import annotations

import dataclasses

from rover_kf.api import names
from rover_kf.api.jobs import Event, Pod
from rover_kf.api.status import CoordinatorStatus, Straggler
from rover_kf.reconcilers.plan import DeletePod, Observed, ReconcilePlan
from rover_kf.reconcilers.status_annotation import ExcludedNode


def apply(plan: ReconcilePlan, observed: Observed, now: float) -> ReconcilePlan:
    """The plan with the slowest pod replaced, if it has been slow for the policy's time."""
    straggler, status = observed.policy.sections.straggler, observed.status
    spent = plan.status.slow_replaced >= straggler.replacements
    if straggler.action != "replace" or status is None or spent or not observed.replaceable:
        return plan
    if not _all_pods_train(observed, status):
        return plan
    late = [slow for slow in status.stragglers if status.now - slow.since >= straggler.min_seconds]
    if not late:
        return plan
    worst = max(late, key=lambda slow: slow.ratio)
    pod = next((pod for pod in observed.pods if pod.name == worst.pod), None)
    if pod is None:
        return plan
    memory = dataclasses.replace(plan.status, slow_replaced=plan.status.slow_replaced + 1)
    told = _message(worst, pod, status.now - worst.since, memory.slow_replaced, observed)
    event = Event(names.EVENT_STRAGGLER_REPLACED, told, warning=True, at=now)
    avoid = observed.policy.sections.failures.node_avoid
    if avoid and _better_without(pod.node, worst.ratio, observed.pods):
        # node_exclusion replaces the pod once the template leaves the node out.
        until = now + avoid
        avoided = ExcludedNode(pod.node, until, f"{pod.name}: straggler: {worst.ratio:g} times")
        memory = dataclasses.replace(memory, excluded_nodes=(*memory.excluded_nodes, avoided))
        return plan.patch(memory, event)
    # Written down first: what was spent is spent, whatever becomes of us.
    return plan.patch(memory, event).with_effects(DeletePod(pod))


def _better_without(node: str, ratio: float, pods: tuple[Pod, ...]) -> bool:
    """Whether the others make more of a step without that node, should no other have room."""
    elsewhere = sum(pod.node != node for pod in pods)
    return bool(node) and elsewhere * ratio > len(pods)


def _all_pods_train(observed: Observed, status: CoordinatorStatus) -> bool:
    """Whether every pod trains, so that the others have what this one has."""
    trains = (
        status.phase == "training" and status.nodes == status.expected_nodes == observed.job.nodes
    )
    running = [pod for pod in observed.pods if pod.phase == "Running" and not pod.deleting]
    return trains and len(running) == len(observed.pods) == observed.job.nodes > 1


def _message(slow: Straggler, pod: Pod, seconds: float, number: int, observed: Observed) -> str:
    place = f" on {pod.node}" if pod.node else ""
    return (
        f"{slow.pod}{place} is replaced: rank {slow.rank} has held the others up for "
        f"{seconds:.0f} s, by {slow.ratio:.1f} times their own time a step "
        f"({number} of {observed.policy.sections.straggler.replacements}, straggler.replacements)"
    )
