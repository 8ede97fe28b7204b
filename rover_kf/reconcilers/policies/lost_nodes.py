# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Pods of nodes that fell silent: removed after the policy's grace, so that others replace them.

Kubernetes itself marks such pods for deletion after five minutes and then waits for a word of their
node; the Training Operator never makes a pod while one of that name is there. A node that was only
cut off goes on with its pod until it hears of it: such a pod is of no round any more, and what it
writes bears its old round (docs/protocol.md).
"""

from __future__ import annotations

from collections.abc import Iterator

from rover_kf.api import names
from rover_kf.api.jobs import Event, Pod
from rover_kf.api.status import ServerLostRequest
from rover_kf.job_kinds.registry import kind_of_job
from rover_kf.reconcilers.plan import CallCoordinator, DeleteLostPod, Observed, ReconcilePlan

_ENDED = ("Succeeded", "Failed")
_CONNECTED = frozenset({"ps", "worker"})


def suspect_nodes(pods: tuple[Pod, ...]) -> frozenset[str]:
    """Nodes worth a question: of pods that are not ready, though they have not ended."""
    return frozenset(pod.node for pod in pods if pod.node and not pod.ready and _occupies_slot(pod))


def apply(plan: ReconcilePlan, observed: Observed, now: float) -> ReconcilePlan:
    """The plan with the pods removed whose node was silent for longer than the grace."""
    for pod in observed.pods:
        left = _grace_left(pod, observed, now)
        if left is None or left > 0:
            continue
        silent = now - observed.silent_nodes[pod.node]
        message = (
            f"{pod.name} is removed: its node {pod.node} has been silent for {silent:.0f} s "
            f"(failures.node-grace is {observed.policy.sections.failures.node_grace:g} s)"
        )
        event = Event(names.EVENT_POD_LOST, message, warning=True, at=now)
        # They are told first: of a pod that is removed nobody would tell after a crash.
        told = _plan_round_restarts(pod, observed, message)
        plan = plan.with_effects(*told, DeleteLostPod(pod, event))
    return plan


def delay(observed: Observed, now: float) -> float | None:
    """Seconds until the next pod's grace is over; None if none is waited for."""
    waits = [left for pod in observed.pods if (left := _grace_left(pod, observed, now)) is not None]
    return min((left for left in waits if left > 0), default=None)


def _plan_round_restarts(lost: Pod, observed: Observed, reason: str) -> Iterator[CallCoordinator]:
    """Who is connected to a server and would wait for its answer for as long as TCP does.

    A chief drives servers and workers, which send each other what they compute. Workers that come
    and go are clients of the parameter servers alone; but those keep their connection to a worker
    that is gone, and once its successor came they answered nobody (TensorFlow 2.21).
    """
    kind = lost.replica_type
    comes_and_goes = kind_of_job(observed.job).is_dynamic(observed.job.manifest)
    if kind not in observed.standalone_types & _CONNECTED:
        return
    hears = observed.status is not None and not (comes_and_goes and kind == "worker")
    others = _CONNECTED - {kind} if comes_and_goes else _CONNECTED
    answered: list[Pod | None] = [
        pod
        for pod in observed.pods
        if pod.replica_type in others
        and pod.name in observed.standalone_statuses
        and pod.node not in observed.silent_nodes
    ]
    failure = f"nobody is told that {lost.name} is lost: its requests wait for as long as TCP does"
    body = ServerLostRequest(lost.uid, reason)
    for pod in [None, *answered] if hears else answered:
        yield CallCoordinator(names.PATH_LOST, body, failure, pod, retried=True)


def _grace_left(pod: Pod, observed: Observed, now: float) -> float | None:
    since = observed.silent_nodes.get(pod.node)
    if since is None or not _occupies_slot(pod):
        return None
    return since + observed.policy.sections.failures.node_grace - now


def _occupies_slot(pod: Pod) -> bool:
    """Whether it holds its place: who has ended does not, unless it waits for its node to say so.

    A controller that is killed between marking a lost pod and deleting it leaves such a one.
    """
    return pod.phase not in _ENDED or pod.deleting
