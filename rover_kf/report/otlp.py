# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A run's recoveries as OpenTelemetry spans, in the JSON of OTLP; pure.

A trace is one change of the world. Its ids are made from the run and the world's number and time:
the same change sent again is the same trace.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import rover_kf
from rover_kf.api.records import RunRecord
from rover_kf.report.recoveries import Recovery, Restored, recoveries

SERVICE = "rover-kf"
_INTERNAL, _ERROR = 1, 2
"""A span's kind, a status' code, as trace.proto numbers them."""


def document(record: RunRecord) -> dict[str, Any]:
    """An ExportTraceServiceRequest; without spans if the run's world never changed."""
    spans = [span for one in recoveries(record) for span in _spans(record.uid, one)]
    job = record.signature
    resource = {
        "service.name": SERVICE,
        "service.version": rover_kf.__version__,
        "k8s.namespace.name": job.namespace,
        "rover_kf.job.name": job.name,
        "rover_kf.job.kind": job.kind,
        "rover_kf.job.uid": record.uid,
    }
    scope = {"name": "rover_kf", "version": rover_kf.__version__}
    part = {
        "resource": {"attributes": _attributes(resource)},
        "scopeSpans": [{"scope": scope, "spans": spans}],
    }
    return {"resourceSpans": [part] if spans else []}


def count(found: Mapping[str, Any]) -> tuple[int, int]:
    """Traces and spans of such a document."""
    spans = [
        span
        for part in found["resourceSpans"]
        for scope in part["scopeSpans"]
        for span in scope["spans"]
    ]
    return len({span["traceId"] for span in spans}), len(spans)


def _spans(uid: str, one: Recovery) -> list[dict[str, Any]]:
    trace = _digest(16, uid, one.round, _nanoseconds(one.formed))
    root = _digest(8, trace, "recovery")

    def child(name: str, begin: float, end: float, **more: object) -> dict[str, Any]:
        rank = more.get("rover_kf.rank", "")
        span = _span(name, begin, end, more)
        return {
            "traceId": trace,
            "spanId": _digest(8, trace, name, rank),
            "parentSpanId": root,
        } | span

    back = [child("restore", one.formed, each.at, **_of_rank(each)) for each in one.restored]
    restored = min(max([one.formed, *(each.at for each in one.restored)]), one.ended)
    parts = [child("rendezvous", one.began, one.formed), *back]
    if not one.lost and one.ended > restored:
        parts.append(child("first step", restored, one.ended))
    name = "planned change" if one.planned else "recovery"
    whole = {"traceId": trace, "spanId": root} | _span(name, one.began, one.ended, _of(one))
    if one.told:
        whole["events"] = [_event(one, place) for place in range(len(one.told))]
    if one.lost:
        whole["status"] = {"code": _ERROR, "message": one.lost}
    return [whole, *parts]


def _of(one: Recovery) -> dict[str, object]:
    found: dict[str, object] = {
        "rover_kf.round": one.round,
        "rover_kf.world_size": one.processes,
        "rover_kf.nodes": one.pods,
    }
    if one.seconds:
        found["rover_kf.restart_seconds"] = one.seconds
    if one.restored:
        found["rover_kf.step"] = max(each.step for each in one.restored)
    if one.lost:
        found["error.type"] = one.lost.partition(":")[0]
    return found


def _of_rank(one: Restored) -> dict[str, object]:
    pod = {"k8s.pod.name": one.pod} if one.pod else {}
    return {
        "rover_kf.rank": one.rank,
        "rover_kf.step": one.step,
        "rover_kf.checkpoint.source": one.source,
    } | pod


def _span(name: str, begin: float, end: float, attributes: Mapping[str, object]) -> dict[str, Any]:
    """One without ids; clocks of nodes differ, so that an end may be told before its begin."""
    return {
        "name": name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(_nanoseconds(begin)),
        "endTimeUnixNano": str(_nanoseconds(max(begin, end))),
        "attributes": _attributes(attributes),
    }


def _event(one: Recovery, place: int) -> dict[str, Any]:
    told = one.told[place]
    pod = {"k8s.pod.name": told.source} if told.source else {}
    return {
        "name": told.reason,
        "timeUnixNano": str(_nanoseconds(told.at)),
        "attributes": _attributes({"rover_kf.message": told.message} | pod),
    }


def _attributes(given: Mapping[str, object]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in given.items()]


def _value(value: object) -> dict[str, Any]:
    """An AnyValue; 64-bit numbers are texts in protobuf's JSON."""
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": str(value)}


def _nanoseconds(at: float) -> int:
    return round(at * 1e6) * 1000


def _digest(size: int, *parts: object) -> str:
    """An id of so many bytes, in hex as OTLP's JSON has them."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[: 2 * size]
