# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Kubernetes objects as plain data to the frozen views of rover_kf.api, and back; pure.

The Training Operator never stores its defaults: they are filled in here.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rover_kf.api import names
from rover_kf.api.jobs import ContainerStatus, Event, JobKey, ObservedJob, Pod
from rover_kf.job_kinds import registry

COMPONENT = "rover-kf"
_ORDER = {"master": 0, "chief": 0, "worker": 1}
_MESSAGE_LIMIT = 1024
"""Characters of an Event's message that the newer Events API allows."""


def parse_job(manifest: Mapping[str, Any]) -> ObservedJob:
    """A job as the API server returned it."""
    metadata, job_kind = manifest["metadata"], registry.kind_named(manifest["kind"])
    phase = job_kind.phase(manifest)
    return ObservedJob(
        key=job_key(manifest),
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        manifest=manifest,
        replicas=job_kind.replica_counts(manifest),
        phase=phase,
        suspended=job_kind.is_suspended(manifest),
        deleting="deletionTimestamp" in metadata,
        created_at=parse_time(metadata.get("creationTimestamp")),
        finished_at=parse_time(job_kind.ended_at(manifest))
        if phase in ("Succeeded", "Failed")
        else None,
    )


def job_key(manifest: Mapping[str, Any]) -> JobKey:
    """Where the object is found."""
    metadata = manifest["metadata"]
    return JobKey(metadata["namespace"], metadata["name"], manifest["kind"])


def parse_pods(items: Sequence[Mapping[str, Any]]) -> tuple[Pod, ...]:
    """Pods in replica order; one without the Training Operator's labels is left out."""
    pods = [
        parse_pod(item)
        for item in items
        if names.REPLICA_INDEX_LABEL in (item["metadata"].get("labels") or {})
    ]
    return sort_pods(pods)


def sort_pods(pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """Pods in replica order."""
    return tuple(sorted(pods, key=lambda pod: (_ORDER.get(pod.replica_type, 2), pod.replica_index)))


def parse_pod(item: Mapping[str, Any]) -> Pod:
    """One pod of a job."""
    metadata, status = item["metadata"], item.get("status") or {}
    labels = metadata["labels"]
    states = [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]
    ends = _ends_of(status)
    unplaced, since = _unschedulable(status)
    limits = _limits(item.get("spec") or {})
    resize = _condition(status, "PodResizePending")
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        replica_type=labels.get(names.REPLICA_TYPE_LABEL, "").lower(),
        replica_index=int(labels[names.REPLICA_INDEX_LABEL]),
        phase=status.get("phase") or "Unknown",
        address=status.get("podIP") or "",
        node=(item.get("spec") or {}).get("nodeName") or "",
        deleting="deletionTimestamp" in metadata,
        ready=_condition(status, "Ready").get("status") == "True",
        containers=tuple(_container_of(state, limits.get(state["name"], {})) for state in states),
        reasons=tuple(reason for reason, _ in ends if reason),
        message=next((message for _, message in ends if message), ""),
        resize=resize.get("reason") or "",
        resize_since=parse_time(resize.get("lastTransitionTime")),
        scheduled_at=_scheduled_at(status),
        unschedulable=unplaced,
        unschedulable_since=since,
        uses_tls=_uses_tls(item.get("spec") or {}),
    )


def _uses_tls(spec: Mapping[str, Any]) -> bool:
    """Whether the sidecar's port is one of TLS."""
    return any(
        port.get("name") == names.TLS_PORT_NAME
        for container in spec.get("initContainers") or ()
        if container.get("name") == names.SIDECAR_CONTAINER
        for port in container.get("ports") or ()
    )


def unreachable_since(node: Mapping[str, Any]) -> float | None:
    """When Kubernetes heard a node no more, Unix seconds; None while it does.

    A kubelet that says itself that it is not ready is no silent one: what runs there runs on.
    """
    ready = _condition(node.get("status") or {}, "Ready")
    return parse_time(ready.get("lastTransitionTime")) if ready.get("status") == "Unknown" else None


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The condition of that type; empty if there is none."""
    found = status.get("conditions") or ()
    return next((condition for condition in found if condition.get("type") == kind), {})


def _unschedulable(status: Mapping[str, Any]) -> tuple[str, float]:
    """Why and since when the scheduler finds no node; one that is nominated is being emptied."""
    placed = _condition(status, "PodScheduled")
    if placed.get("reason") != "Unschedulable" or status.get("nominatedNodeName"):
        return "", 0.0
    message = placed.get("message") or "no node has room for it"
    return message, parse_time(placed.get("lastTransitionTime"))


def _scheduled_at(status: Mapping[str, Any]) -> float:
    placed = _condition(status, "PodScheduled")
    there = placed.get("status") == "True"
    return parse_time(placed.get("lastTransitionTime")) if there else 0.0


def _ends_of(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Reason and message of a pod's end, and of a disruption that will end it."""
    disruptions = [
        condition
        for condition in status.get("conditions") or ()
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True"
    ]
    return [(one.get("reason") or "", one.get("message") or "") for one in (status, *disruptions)]


def node_sizes(nodes: Sequence[Mapping[str, Any]], resource: str) -> tuple[str, ...]:
    """What schedulable nodes have of it for pods, as they state it, each amount once."""
    found = {
        ((node.get("status") or {}).get("allocatable") or {}).get(resource) or ""
        for node in nodes
        if not (node.get("spec") or {}).get("unschedulable")
    }
    return tuple(sorted(found - {""}))


def _limits(spec: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """By container, of those that have limits."""
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    stated = ((item["name"], (item.get("resources") or {}).get("limits")) for item in containers)
    return {name: limits for name, limits in stated if limits}


def _container_of(state: Mapping[str, Any], limits: Mapping[str, Any]) -> ContainerStatus:
    now, last = state.get("state") or {}, state.get("lastState") or {}
    ended = now.get("terminated") or last.get("terminated") or {}
    waiting = now.get("waiting") or {}
    ended_now = (now.get("terminated") or {}).get("reason")
    return ContainerStatus(
        name=state["name"],
        running="running" in now,
        restarts=int(state.get("restartCount") or 0),
        exit_code=ended.get("exitCode"),
        reason=ended_now or waiting.get("reason") or ended.get("reason") or "",
        message=waiting.get("message") or "",
        ended_at=parse_time(ended.get("finishedAt")),
        termination_reason=ended.get("reason") or "",
        memory_limit=str(limits.get("memory", "")),
        cpu_limit=str(limits.get("cpu", "")),
        termination_message=ended.get("message") or "",
    )


def parse_event(item: Mapping[str, Any]) -> Event:
    """An Event as anyone wrote it."""
    times = ("eventTime", "lastTimestamp", "firstTimestamp")
    at = next((item[key] for key in times if item.get(key)), None)
    source = (item.get("source") or {}).get("component") or item.get("reportingComponent") or ""
    return Event(
        reason=item.get("reason") or "",
        message=item.get("message") or "",
        warning=item.get("type") == "Warning",
        at=parse_time(at or item["metadata"].get("creationTimestamp")),
        source=source,
    )


def event_body(job: ObservedJob, event: Event, now: float) -> dict[str, Any]:
    """An Event on the job for ``kubectl describe``.

    A writer that counts its story (sequence above 0) tells each line once: the name follows from
    the line, so telling it again after a crash meets an object that is there.
    """
    at = event.at or now
    line = f"{job.uid}/{event.source}/{event.sequence}/{at}/{event.reason}/{event.message}"
    digest = hashlib.sha256(line.encode()).hexdigest() if event.sequence else uuid.uuid4().hex
    message = event.message
    if len(message) > _MESSAGE_LIMIT:
        message = message[: _MESSAGE_LIMIT - 1] + "…"
    moment = format_time(at)
    component = event.source or COMPONENT
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{job.key.name}.{digest[:16]}",
            "namespace": job.key.namespace,
        },
        "involvedObject": {
            "apiVersion": registry.kind_named(job.key.kind).api_version,
            "kind": job.key.kind,
            "namespace": job.key.namespace,
            "name": job.key.name,
            "uid": job.uid,
        },
        "type": "Warning" if event.warning else "Normal",
        "reason": event.reason,
        "message": message,
        "count": 1,
        "firstTimestamp": moment[:19] + "Z",
        "lastTimestamp": moment[:19] + "Z",
        "eventTime": moment,
        "action": event.reason,
        "source": {"component": component},
        "reportingComponent": COMPONENT,
        "reportingInstance": component[:128],
    }


def format_time(timestamp: float) -> str:
    """Unix seconds as Kubernetes writes a time with microseconds."""
    moment = dt.datetime.fromtimestamp(timestamp, tz=dt.timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str | None) -> float:
    """A Kubernetes time as Unix seconds; 0 if there is none."""
    if not text:
        return 0.0
    return dt.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
