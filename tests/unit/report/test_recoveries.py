# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Changes of a run's world, and the spans that are made of them, held to OpenTelemetry's own types.

Events are worded as coordinator, sidecars and controller word them.
"""

from __future__ import annotations

import base64
import copy
import dataclasses
import json

import pytest
from google.protobuf import json_format
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from rover_kf.api.jobs import Event
from rover_kf.api.records import JobSignature, RunRecord
from rover_kf.api.samples import Throughput
from rover_kf.history import recorder
from rover_kf.report import otlp
from rover_kf.report.event_parsing import Restored, read_recoveries
from tests.support.jobs.run_records import BEGIN, run_record

SIGNATURE = JobSignature("team", "llm", "PyTorchJob", "trainer:1", "python train.py", 1, 0)
FIRST = "llm-worker-0"


def said(at, reason, message, source=FIRST, *, warning=False):
    return Event(reason, message, warning, BEGIN + at, source=source)


def formed(at, number, why=""):
    before = f"; the one before ended: {why}" if why else ""
    return said(at, "WorldFormed", f"round {number}: 2 processes in 2 pods{before}")


def back(at, number, took):
    message = f"round {number}: every rank steps again, {took:.2f} s after the change"
    return said(at, "Recovered", message)


def killed(at, number=1):
    message = f"rank {number} in llm-worker-{number}: killed: ended by SIGKILL"
    return said(at, "TrainingProcessFailed", message, warning=True)


def restored(at, rank, number, step=40, source="memory"):
    message = (
        f"rank {rank} of 2 resumes at step {step} from {source} in round {number}; CRC-32C 00c0ffee"
    )
    return said(at, "CheckpointRestored", message, f"llm-worker-{rank}")


KILL = (
    formed(0, 1),
    killed(100),
    formed(100.5, 2, "rank 1 in llm-worker-1: killed: ended by SIGKILL"),
    restored(102.25, 0, 2),
    restored(102.5, 1, 2, source="peer"),
    back(103, 2, 2.9),
)


def run(*events, outcome="succeeded"):
    return RunRecord("u-1", SIGNATURE, BEGIN, BEGIN + 500, outcome, {}, {}, events=events)


def only(record):
    (one,) = read_recoveries(record)
    return one


def test_a_recovery_has_its_parts():
    """Failure, world, each rank's state, first step; a first world is none."""
    one = only(run(*KILL))
    assert (one.round, one.processes, one.pods, one.seconds, one.lost) == (2, 2, 2, 2.9, "")
    assert [at - BEGIN for at in (one.began, one.formed, one.ended)] == [100, 100.5, 103]
    assert one.restored == (
        Restored(0, 40, "memory", BEGIN + 102.25, "llm-worker-0"),
        Restored(1, 40, "peer", BEGIN + 102.5, "llm-worker-1"),
    )
    assert [event.reason for event in one.events] == ["TrainingProcessFailed"]
    assert not one.planned
    assert read_recoveries(run(formed(0, 1), killed(100))) == ()
    assert read_recoveries(run()) == ()


def test_what_is_under_way_is_none_yet():
    """Until a later Event says how it went; what is told then does not change any more."""
    assert read_recoveries(run(*KILL[:-1], outcome="running")) == ()
    whole = read_recoveries(run(*KILL, outcome="running"))
    assert whole == read_recoveries(run(*KILL, said(400, "TrainingFinished", "all ended with 0")))
    assert whole == read_recoveries(run(*KILL, killed(300), formed(301, 3), outcome="running"))


def test_what_others_see_later_moves_nothing():
    """The controller's Event comes when it looks; an Event of long ago is not why."""
    asked = said(20, "Scaled", "3 pods expected now: by hand")
    late = said(102.9, "PodLost", "llm-worker-1: evicted: by its node", "", warning=True)
    one = only(run(KILL[0], asked, *KILL[1:5], late, KILL[5]))
    assert (one.began - BEGIN, one.ended - BEGIN) == (100, 103)
    assert [event.reason for event in one.events] == ["TrainingProcessFailed", "PodLost"]
    after = said(104, "PodLost", "llm-worker-1: evicted: by its node", "", warning=True)
    later = said(300, "MemberLeft", "rank 1 (llm-worker-1) left: SIGTERM")
    two = read_recoveries(run(*KILL, after, later, formed(301, 3), back(302, 3, 1.5)))[1]
    assert (two.began - BEGIN, two.planned) == (300, True)


def test_a_world_that_never_trained_is_an_error():
    """Another failure, another world or the job's end came first."""
    again = (killed(101), formed(101.5, 3), back(103, 3, 3))
    lost, one = read_recoveries(run(*KILL[:3], *again))
    assert lost.lost.startswith("TrainingProcessFailed: rank 1")
    assert (lost.began - BEGIN, lost.ended - BEGIN) == (100, 101)
    assert (one.round, one.began - BEGIN, one.lost) == (3, 100, "")
    assert read_recoveries(run(*KILL[:3], *again[1:]))[0].lost.startswith("Superseded: round 3")
    ended = said(110, "TrainingFailed", "no restart is left", "", warning=True)
    assert only(run(*KILL[:3], ended)).lost == "TrainingFailed: no restart is left"


def test_a_script_that_tells_no_steps_has_recovered_when_its_state_is_back():
    """Nobody knows of its first step; that it went well is known at its end."""
    one = only(run(*KILL[:4], said(400, "TrainingFinished", "all ended with 0")))
    assert (one.ended - BEGIN, one.lost) == (102.25, "")


def test_a_new_coordinator_tells_no_end_and_the_first_steps_do():
    """The first pod was lost: its successor has measured nothing, nor is it an error."""
    lost = said(100, "MemberLost", "rank 0 (llm-worker-0) was lost with its coordinator")
    long_ago = said(20, "Scaled", "3 pods expected now: by hand")
    events = (KILL[0], long_ago, lost, formed(103, 2), restored(105, 1, 2, source="peer"))
    steady = tuple(
        Throughput(BEGIN + at, BEGIN + at + 10, 2, 2, 40, 640, 0.25, 16.0) for at in (80, 106, 116)
    )
    record = dataclasses.replace(run(*events), windows=steady)
    one = only(record)
    assert [at - BEGIN for at in (one.began, one.formed, one.ended)] == [100, 103, 106]
    assert (one.seconds, one.lost, len(one.restored)) == (0.0, "", 1)
    later = dataclasses.replace(record, events=(*events, killed(300), formed(301, 3)))
    assert only(later) == one
    # Without a window the next change says whether it had trained: that began when it stopped.
    rest = (killed(300), formed(301, 3), back(303, 3, 2.9))
    short = read_recoveries(run(*events, *rest))[0]
    assert (short.ended - BEGIN, short.lost) == (105, "")


def test_a_thinned_run_tells_no_error_that_was_none():
    """Where Events are left out, a recovery's last one may be: it is not told then."""
    filler = [said(200 + i, "CheckpointDurable", f"step {i}") for i in range(recorder.MAX_EVENTS)]
    rest = (killed(5000), formed(5001, 3), back(5003, 3, 2.9))
    found = read_recoveries(run(*KILL[:-1], *filler, *rest))
    assert [one.round for one in found] == [3]
    for one in read_recoveries(run_record(ranks=16, seconds=7 * 86400, every=60, failures=300)):
        assert one.ended >= one.formed >= one.began


def typed(document):
    """Read by OpenTelemetry's own definitions, which refuse a key or a type that they lack.

    Ids are hex in OTLP's JSON and base64 in protobuf's: the one thing that differs.
    """
    found = copy.deepcopy(document)
    for part in found.get("resourceSpans", ()):
        for span in (span for scope in part["scopeSpans"] for span in scope["spans"]):
            for key in ("traceId", "spanId", "parentSpanId"):
                if key in span:
                    span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
    return json_format.ParseDict(found, ExportTraceServiceRequest())


def document(record):
    return json.loads(otlp.text(otlp.spans(record)))


def spans(record):
    (part,) = typed(document(record)).resource_spans
    return list(part.scope_spans[0].spans)


def told(attributes):
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


def test_spans_are_what_opentelemetry_defines():
    """A tree of one trace: ids of their length, parents that hold their children, attributes."""
    record = run(*KILL)
    root, *parts = spans(record)
    assert (root.name, root.kind, root.parent_span_id) == ("recovery", Span.SPAN_KIND_INTERNAL, b"")
    assert [one.name for one in parts] == ["rendezvous", "restore", "restore", "first step"]
    assert {(len(one.trace_id), len(one.span_id)) for one in (root, *parts)} == {(16, 8)}
    assert len({one.span_id for one in (root, *parts)}) == 5
    for one in parts:
        assert (one.trace_id, one.parent_span_id) == (root.trace_id, root.span_id)
        assert root.start_time_unix_nano <= one.start_time_unix_nano <= one.end_time_unix_nano
        assert one.end_time_unix_nano <= root.end_time_unix_nano
    lengths = [(one.end_time_unix_nano - one.start_time_unix_nano) / 1e9 for one in (root, *parts)]
    assert lengths == [3.0, 0.5, 1.75, 2.0, 0.5]
    assert root.status.code == Status.STATUS_CODE_UNSET
    assert told(root.attributes) == {
        "rover_kf.round": 2,
        "rover_kf.world_size": 2,
        "rover_kf.nodes": 2,
        "rover_kf.restart_seconds": 2.9,
        "rover_kf.step": 40,
    }
    assert told(parts[2].attributes) == {
        "rover_kf.rank": 1,
        "rover_kf.step": 40,
        "rover_kf.checkpoint.source": "peer",
        "k8s.pod.name": "llm-worker-1",
    }
    assert [event.name for event in root.events] == ["TrainingProcessFailed"]
    assert "SIGKILL" in told(root.events[0].attributes)["rover_kf.message"]
    resource = told(typed(document(record)).resource_spans[0].resource.attributes)
    assert (resource["service.name"], resource["k8s.namespace.name"]) == ("rover-kf", "team")
    assert resource["rover_kf.job.name"] == "llm"


def test_an_error_is_told_as_conventions_have_it():
    """Status and error.type of what failed alone."""
    found = spans(run(*KILL[:3], killed(101), formed(101.5, 3), back(103, 3, 2.9)))
    lost, one = (span for span in found if not span.parent_span_id)
    assert (lost.status.code, one.status.code) == (
        Status.STATUS_CODE_ERROR,
        Status.STATUS_CODE_UNSET,
    )
    assert told(lost.attributes)["error.type"] == "TrainingProcessFailed"
    assert "error.type" not in told(one.attributes)
    assert lost.trace_id != one.trace_id


def test_the_same_recovery_has_the_same_ids():
    """Told again, and after others; another run's are others."""
    now, later = run(*KILL), run(*KILL, killed(300), formed(301, 3), back(302, 3, 1.5))
    assert spans(now) == spans(later)[:5]
    assert otlp.count_spans(otlp.spans(later)) == (2, 8)
    other = dataclasses.replace(now, uid="u-2")
    assert {one.trace_id for one in spans(other)} != {one.trace_id for one in spans(now)}


@pytest.mark.parametrize("events", [(), KILL[:1]])
def test_a_run_without_recoveries_has_no_spans(events):
    """An empty request, which OpenTelemetry allows."""
    record = run(*events)
    assert otlp.count_spans(otlp.spans(record)) == (0, 0)
    assert typed(document(record)) == ExportTraceServiceRequest()


def test_what_is_printed_is_what_is_sent():
    """In OTLP's JSON ids are hexadecimal, and enumerations numbers."""
    record = run(*KILL)
    assert typed(document(record)) == encode_spans(otlp.spans(record))
    (scope,) = document(record)["resourceSpans"][0]["scopeSpans"]
    root = scope["spans"][0]
    assert (len(root["traceId"]), root["kind"]) == (32, 1)
    assert scope["spans"][1]["parentSpanId"] == root["spanId"]
