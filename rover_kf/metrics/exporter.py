# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Prometheus text of a sidecar.

The coordinator's sidecar exports the job, every sidecar itself. Values are set when asked for, so
that nothing has to be kept in step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from rover_kf.api import names
from rover_kf.api.data import DataStatus
from rover_kf.api.status import CoordinatorStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_GAUGES = {
    "step": "Newest step that any rank reported.",
    "world_size": "Training processes of the current round.",
    "nodes": "Pods of the current round.",
    "expected_nodes": "Pods that the job is to have.",
    "samples_per_second": "Throughput over the last steps, all ranks.",
    "sealed_step": "Newest step in memory; -1 if none.",
    "durable_step": "Newest step on storage; -1 if none.",
    "snapshot_bytes": "Size of the newest sealed snapshot, one rank.",
    "storage_rate": "Bytes a second that storage took of the slowest pod lately; 0: not measured.",
    "restart_seconds": "Last time from a change of the world until every rank stepped.",
}
_DATA_GAUGES = {
    "epoch": "Of a data set whose slots are leased, from 0 on.",
    "slots": "Of the epoch; of a stream those that there are by now.",
    "done": "Slots of the epoch that are used.",
    "outstanding": "Slots that are lent, or read ahead, and not used yet.",
    "poisoned": "Slots that were set aside, and records of which nothing could be made.",
    "rate": "Slots a second over the last minute.",
}
_SHARE_GAUGES = {
    "used": "Slots of the epoch that a rank has used.",
    "outstanding": "Slots that a rank has and has not used yet.",
}
_COUNTERS = {
    "restarts": "Rounds that ended by a failure.",
    "saves": "Steps saved to memory.",
    "save_seconds": "Blocked by saves, slowest rank.",
}


_EVENTS = (
    names.EVENT_HANG,
    names.EVENT_STRAGGLER,
    names.EVENT_REPLICA_MISMATCH,
    names.EVENT_CHECKPOINT_WARNING,
    names.EVENT_PROCESS_FAILED,
    names.EVENT_POD_LOST,
    names.EVENT_MEMBER_LOST,
    names.EVENT_NODE_CHECK_FAILED,
    names.EVENT_DATA_SHARD_QUARANTINED,
)
"""Counted by name from 0 on; a name that a pod made up is no label."""


def render(
    pod: str,
    job: str,
    status: CoordinatorStatus | None,
    *,
    event_counts: Mapping[str, int] | None = None,
    storage: bool = False,
    silent_seconds: float = 0.0,
    certificate_ends: float = 0.0,
) -> bytes:
    """Return the text for GET /metrics of a pod's sidecar.

    Args:
        pod: its name.
        job: of the pod.
        status: of the coordinator; None: this sidecar has none.
        event_counts: how often the coordinator has emitted each Event.
        storage: whether checkpoints go to storage at all.
        silent_seconds: how long storage has not answered this sidecar; 0: it does.
        certificate_ends: end of the sidecar's certificate, Unix seconds; 0: it has none.
    """
    registry = CollectorRegistry()
    _gauge(registry, "sidecar_up", "A sidecar that runs.", 1, job=job, pod=pod)
    text = "How long the checkpoints' folder has hung for this pod; 0: it answers."
    _gauge(registry, "storage_silent_seconds", text, silent_seconds, job=job, pod=pod)
    text = (
        "When the certificate that this sidecar shows ends, Unix time; 0: sidecars do not encrypt."
    )
    _gauge(registry, "certificate_end_seconds", text, certificate_ends, job=job, pod=pod)
    if status is None:
        return generate_latest(registry)
    values = {name: getattr(status, name) for name in (*_GAUGES, *_COUNTERS)}
    for name, text in _GAUGES.items():
        _gauge(registry, name, text, -1 if values[name] is None else values[name], job=job)
    for name, text in _COUNTERS.items():
        counter = Counter(f"rover_kf_{name}", text, ["job"], registry=registry)
        counter.labels(job).inc(values[name])
    # A gauge: the last seconds may turn out to have been spent on something else.
    text = "Seconds of the job by what they were spent on; they sum to its age."
    spent = Gauge("rover_kf_goodput_seconds", text, ["job", "bucket"], registry=registry)
    for field in dataclasses.fields(status.goodput):
        spent.labels(job, field.name).set(getattr(status.goodput, field.name))
    _add_data(registry, job, status.data)
    text = "Events that this coordinator has told, those that ask for a look."
    events = Counter("rover_kf_events", text, ["job", "reason"], registry=registry)
    for reason in _EVENTS:
        events.labels(job, reason).inc((event_counts or {}).get(reason, 0))
    _gauge(registry, "storage", "1 where checkpoints go to storage, else 0.", storage, job=job)
    return generate_latest(registry)


def _gauge(registry: CollectorRegistry, name: str, text: str, value: float, **labels: str) -> None:
    """Add a gauge that has one value."""
    gauge = Gauge(f"rover_kf_{name}", text, list(labels), registry=registry)
    gauge.labels(**labels).set(value)


def _add_data(registry: CollectorRegistry, job: str, statuses: tuple[DataStatus, ...]) -> None:
    """How far data sets are read, and by whom."""
    for name, text in _DATA_GAUGES.items():
        gauge = Gauge(f"rover_kf_data_{name}", text, ["job", "data"], registry=registry)
        for data in statuses:
            gauge.labels(job, data.name).set(getattr(data, name))
    text = "Until the data are read, at the last minute's rate; absent where that is not known."
    left = Gauge("rover_kf_data_eta_seconds", text, ["job", "data"], registry=registry)
    for data in statuses:
        if data.eta_seconds is not None:
            left.labels(job, data.name).set(data.eta_seconds)
    for name, text in _SHARE_GAUGES.items():
        labels = ["job", "data", "rank"]
        gauge = Gauge(f"rover_kf_data_rank_{name}", text, labels, registry=registry)
        for data in statuses:
            for share in data.workers:
                gauge.labels(job, data.name, share.rank).inc(getattr(share, name))
