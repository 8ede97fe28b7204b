# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A run's recoveries as OpenTelemetry spans; pure. Needs the extra ``otel``.

A trace is one change of the world. Its ids are made from the run and the world's number and time:
the same change sent again is the same trace. So spans are made whole, with their ids and the times
of the past, where a tracer would take limits and a sampler from the environment, too.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence

from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags
from opentelemetry.util.types import AttributeValue

import rover_kf
from rover_kf.api.records import RunRecord
from rover_kf.report.event_parsing import RecoveryRecord, Restored, read_recoveries

_SCOPE = InstrumentationScope("rover_kf", rover_kf.__version__)
_IDS = ("traceId", "spanId", "parentSpanId")


def spans(record: RunRecord) -> tuple[ReadableSpan, ...]:
    """Spans of all changes, each change's root first; none if the run's world never changed."""
    job = record.signature
    resource = Resource(
        {
            "service.name": "rover-kf",
            "service.version": rover_kf.__version__,
            "k8s.namespace.name": job.namespace,
            "rover_kf.job.name": job.name,
            "rover_kf.job.kind": job.kind,
            "rover_kf.job.uid": record.uid,
        }
    )
    changes = read_recoveries(record)
    return tuple(span for one in changes for span in _recovery_spans(record.uid, one, resource))


def count_spans(made: Sequence[ReadableSpan]) -> tuple[int, int]:
    """Traces and spans."""
    return len({span.context.trace_id for span in made}), len(made)


def text(made: Sequence[ReadableSpan]) -> str:
    """An ExportTraceServiceRequest in the JSON of OTLP.

    It differs from protobuf's in two points: enumerations are numbers, and ids are hexadecimal.
    """
    document = MessageToDict(encode_spans(made), use_integers_for_enums=True)
    document.setdefault("resourceSpans", [])  # a run without changes, too, has the list
    for part in document.get("resourceSpans", ()):
        for span in (span for scope in part["scopeSpans"] for span in scope["spans"]):
            span |= {key: base64.b64decode(span[key]).hex() for key in _IDS if key in span}
    return json.dumps(document, indent=2) + "\n"


def _recovery_spans(uid: str, recovery: RecoveryRecord, resource: Resource) -> list[ReadableSpan]:
    trace = _digest(16, uid, recovery.round, _to_nanoseconds(recovery.formed))
    root = _context(trace, "recovery")

    def child(name: str, begin: float, end: float, **more: AttributeValue) -> ReadableSpan:
        return ReadableSpan(
            name,
            _context(trace, name, more.get("rover_kf.rank", "")),
            parent=root,
            resource=resource,
            attributes=more,
            instrumentation_scope=_SCOPE,
            start_time=_to_nanoseconds(begin),
            end_time=_to_nanoseconds(max(begin, end)),  # clocks of nodes differ
        )

    back = [
        child("restore", recovery.formed, each.restored_at, **_rank_attributes(each))
        for each in recovery.restored
    ]
    restored = min(
        max([recovery.formed, *(each.restored_at for each in recovery.restored)]), recovery.ended
    )
    parts = [child("rendezvous", recovery.began, recovery.formed), *back]
    if not recovery.lost and recovery.ended > restored:
        parts.append(child("first step", restored, recovery.ended))
    whole = ReadableSpan(
        "planned change" if recovery.planned else "recovery",
        root,
        resource=resource,
        attributes=_recovery_attributes(recovery),
        events=[_make_event(recovery, place) for place in range(len(recovery.events))],
        status=Status(StatusCode.ERROR, recovery.lost) if recovery.lost else Status(),
        instrumentation_scope=_SCOPE,
        start_time=_to_nanoseconds(recovery.began),
        end_time=_to_nanoseconds(max(recovery.began, recovery.ended)),
    )
    return [whole, *parts]


def _recovery_attributes(recovery: RecoveryRecord) -> dict[str, AttributeValue]:
    given: dict[str, AttributeValue] = {
        "rover_kf.round": recovery.round,
        "rover_kf.world_size": recovery.processes,
        "rover_kf.nodes": recovery.pods,
    }
    if recovery.seconds:
        given["rover_kf.restart_seconds"] = recovery.seconds
    if recovery.restored:
        given["rover_kf.step"] = max(each.step for each in recovery.restored)
    if recovery.lost:
        given["error.type"] = recovery.lost.partition(":")[0]
    return given


def _rank_attributes(restored: Restored) -> dict[str, AttributeValue]:
    given: dict[str, AttributeValue] = {
        "rover_kf.rank": restored.rank,
        "rover_kf.step": restored.step,
        "rover_kf.checkpoint.source": restored.source,
    }
    if restored.pod:
        given["k8s.pod.name"] = restored.pod
    return given


def _make_event(recovery: RecoveryRecord, index: int) -> Event:
    event = recovery.events[index]
    pod = {"k8s.pod.name": event.source} if event.source else {}
    return Event(event.reason, {"rover_kf.message": event.message} | pod, _to_nanoseconds(event.at))


def _context(trace: str, *parts: object) -> SpanContext:
    return SpanContext(
        int(trace, 16),
        int(_digest(8, trace, *parts), 16),
        is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )


def _to_nanoseconds(timestamp: float) -> int:
    return round(timestamp * 1e6) * 1000


def _digest(size: int, *parts: object) -> str:
    """An id of so many bytes, in hexadecimal."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[: 2 * size]
