# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a look adds to a job's Events: the coordinator's lines, pods' ends, admission; pure."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from rover_kf.api import names
from rover_kf.api.jobs import ContainerStatus, Event, Pod
from rover_kf.elastic.failures.classify import classify_pod
from rover_kf.elastic.failures.pods import KILLED
from rover_kf.elastic.failures.rule import ExitEvidence
from rover_kf.reconcilers.plan import EmitJobEvent, Observed, ReconcilePlan
from rover_kf.reconcilers.policies import node_exclusion, pending_pods


# Which they are say the rules of elastic.failures.pods, that docs/failures.md lists.
def collect_pod_events(pods: tuple[Pod, ...], now: float) -> Iterator[tuple[str, Event]]:
    """Events about pods and containers that were ended, each with the key it is told once under."""
    for pod in pods:
        lost = classify_pod(ExitEvidence(pod_reasons=pod.reasons, message=pod.message))
        if lost is not None:
            message = f"{pod.name}: {lost.kind}: {lost.reason}"
            event = Event(names.EVENT_POD_LOST, message, warning=True, at=now)
            yield f"lost:{pod.uid[:8]}:{lost.kind}", event
        for container in pod.containers:
            message = _message(pod, container, ending=pod.deleting or lost is not None)
            if message:
                key = f"died:{pod.uid[:8]}:{container.name}:{container.restarts}"
                yield key, Event(names.EVENT_PROCESS_FAILED, message, warning=True, at=now)


def _message(pod: Pod, container: ContainerStatus, *, ending: bool) -> str:
    known = ExitEvidence(
        container.exit_code, container_reason=container.reason, message=container.message
    )
    verdict = classify_pod(known)
    # A pod that ends has its containers killed if they do not hear.
    if verdict is not None and not (ending and verdict.kind == KILLED.kind):
        return (
            f"{pod.name}: {verdict.kind}: container {container.name} "
            f"(restart {container.restarts}) {verdict.reason}"
        )
    if container.name == names.SIDECAR_CONTAINER and container.exit_code:
        return (
            f"{pod.name}: the rover-kf sidecar ended with {container.exit_code} "
            f"({container.reason or 'no reason given'}); its log says why"
        )
    return ""


_ENDS = (names.EVENT_FINISHED, names.EVENT_JOB_FAILED)


def apply(plan: ReconcilePlan, observed: Observed, now: float) -> ReconcilePlan:
    """The plan with what is new told, each thing once as far as the annotation remembers."""
    memory = plan.status
    effects: list[EmitJobEvent] = []
    told = (
        _injection_events(observed, now),
        collect_pod_events(observed.pods, now),
        _policy_events(observed, now),
        node_exclusion.collect_events(observed, now),
        pending_pods.collect_events(observed, now),
    )
    for key, event in itertools.chain.from_iterable(told):
        if not memory.has_emitted(key):
            effects.append(EmitJobEvent(event))
            memory = memory.with_emitted(key)
    if observed.status is not None:
        for event in observed.status.events:
            if event.sequence > memory.last_event:
                effects.append(EmitJobEvent(event))
                memory = dataclasses.replace(memory, last_event=event.sequence)
                memory = memory.with_emitted(event.reason) if event.reason in _ENDS else memory
        memory = memory.with_progress(observed.status)
    # Of pods that are worlds of their own: that all is well tells the chief's training.
    for status in observed.standalone_statuses.values():
        effects += [EmitJobEvent(event) for event in status.events if event.warning]
    for event in _final_events(observed, now):
        if not memory.has_emitted(event.reason):
            effects.append(EmitJobEvent(event))
            memory = memory.with_emitted(event.reason)
    return plan.with_effects(*effects, status=memory)


def _final_events(observed: Observed, now: float) -> Iterator[Event]:
    """The coordinator ends with its pod, often before anyone has asked it for its last line."""
    if observed.job.phase == "Succeeded":
        yield Event(names.EVENT_FINISHED, "the Training Operator says Succeeded", at=now)
    elif observed.job.phase == "Failed":
        told = "the events and logs before tell why"
        message = f"the Training Operator says Failed; {_launcher_verdict(observed) or told}"
        yield Event(names.EVENT_JOB_FAILED, message, warning=True, at=now)


def _launcher_verdict(observed: Observed) -> str:
    """The verdict that a launcher has left in its container's status."""
    ends = (container for pod in observed.pods for container in pod.containers)
    wrong = (
        one for one in ends if one.exit_code == names.EXIT_USER_ERROR and one.termination_message
    )
    return next((f"container {one.name} said: {one.termination_message}" for one in wrong), "")


def _injection_events(observed: Observed, now: float) -> Iterator[tuple[str, Event]]:
    """A webhook must not write Events (sideEffects None): what it did is told here."""
    job = observed.job
    if names.INJECTED_ANNOTATION in job.annotations:
        message = "runtime, sidecar and arena are in the job's pods"
        yield "injected", Event(names.EVENT_INJECTED, message, at=now)
    elif observed.status is None and job.labels.get(names.INJECT_LABEL) == "true":
        message = (
            "it was created or labelled while the webhook could not see to it and runs as it was "
            "written; delete it and create it again for checkpoints, recovery and scaling"
        )
        yield "plain", Event(names.EVENT_NOT_INJECTED, message, warning=True, at=now)
    reasons = job.annotations.get(names.NOT_REWRITTEN_ANNOTATION)
    if reasons:
        message = f"checkpoints only, neither recovery nor scaling: {reasons}"
        yield "command", Event(names.EVENT_NOT_REWRITTEN, message, warning=True, at=now)


def _policy_events(observed: Observed, now: float) -> Iterator[tuple[str, Event]]:
    if observed.policy_error:
        message = f"scaling is off until it is mended: {observed.policy_error}"
        event = Event(names.EVENT_SCALE_REFUSED, message, warning=True, at=now)
        yield f"policy:{observed.policy_error[:40]}", event
    if observed.status_error:
        event = Event(names.EVENT_STATUS_REJECTED, observed.status_error, warning=True, at=now)
        yield "status", event
