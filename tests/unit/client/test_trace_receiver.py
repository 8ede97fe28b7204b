# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Traces are sent to a receiver of OTLP over HTTP; what it refuses is told.

The receiver is a real HTTP server; what reads the requests is held to OpenTelemetry's own types in
tests/unit/report/test_recoveries.py.
"""

from __future__ import annotations

import contextlib
import http.server
import subprocess
import sys
import threading

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from rover_kf import errors
from rover_kf.api.jobs import Event
from rover_kf.api.records import JobSignature, RunRecord
from rover_kf.cli import main
from rover_kf.client import trace_receiver
from rover_kf.history import store
from rover_kf.report import otlp


def answer(rejected=0, message=""):
    """As a receiver gives it."""
    made = ExportTraceServiceResponse()
    made.partial_success.rejected_spans = rejected
    made.partial_success.error_message = message
    return made.SerializeToString()


@pytest.fixture(autouse=True)
def no_headers(monkeypatch):
    """The exporter is given this machine's variables; and it gives up soon."""
    for name in trace_receiver.HEADERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(trace_receiver, "TIMEOUT_SECONDS", 0.5)


@contextlib.contextmanager
def receiving(status=200, body=b"", **headers):
    """A receiver that answers so; its requests as (path, headers, document)."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            length = int(self.headers["Content-Length"])
            told = {key.lower(): value for key, value in self.headers.items()}
            request = ExportTraceServiceRequest.FromString(self.rfile.read(length))
            asked.append((self.path, told, request))
            self._answer()

        def do_GET(self):
            asked.append((self.path, {}, None))
            self._answer()

        def _answer(self):
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """Silence."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


RECORD = RunRecord(
    "u-1",
    JobSignature("team", "llm", "PyTorchJob", "trainer:1", "python train.py", 1, 0),
    1.7e9,
    1.7e9 + 200,
    "succeeded",
    {},
    {},
    events=(
        Event("WorldFormed", "round 1: 1 processes in 1 pods", at=1.7e9, source="llm-worker-0"),
        Event("Hang", "no step for 60 s", at=1.7e9 + 100, source="llm-worker-0", warning=True),
        Event("WorldFormed", "round 2: 1 processes in 1 pods", at=1.7e9 + 101, source="w"),
        Event(
            "Recovered",
            "round 2: every rank steps again, 3.00 s after the change",
            at=1.7e9 + 103,
            source="llm-worker-0",
        ),
    ),
)  # fmt: skip
SPANS = otlp.spans(RECORD)
REQUEST = encode_spans(SPANS)


def test_traces_arrive_with_what_the_environment_adds(monkeypatch):
    """At the receiver's path; a token comes of OpenTelemetry's own variables."""
    general, own = "authorization=Bearer%20all, x-scope=team", "authorization=Bearer%20traces"
    with receiving() as (url, asked):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", general)
        assert trace_receiver.send(SPANS, url) == ""
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", own)
        assert trace_receiver.send(SPANS, f"{url}/otlp/v1/traces") == ""
    (path, told, document), (other, then, _) = asked
    assert (path, other) == ("/v1/traces", "/otlp/v1/traces")
    assert told["content-type"] == "application/x-protobuf"
    assert (told["authorization"], told["x-scope"]) == ("Bearer all", "team")
    assert (then["authorization"], "x-scope" in then) == ("Bearer traces", False)
    assert document == REQUEST


def test_spans_that_were_not_kept_are_told():
    """A receiver may take a part, warn, or answer in another format."""
    with receiving(body=answer(2, "too old")) as (url, _):
        assert trace_receiver.send(SPANS, url) == "2 spans were not kept: too old"
    with receiving(body=answer(0, "soon")) as (url, _):
        assert trace_receiver.send(SPANS, url) == "soon"
    for body in (b"", b"\x0a\x00", b"[1]", b'{"partialSuccess": 7}'):
        with receiving(body=body) as (url, _):
            assert trace_receiver.send(SPANS, url) == ""


@pytest.mark.parametrize("status", [400, 401, 404, 429, 503])
def test_a_refusal_is_told_with_the_receivers_words(status):
    """Whatever its code."""
    with (
        receiving(status, b"not now") as (url, _),
        pytest.raises(errors.TraceExportError, match=f"/v1/traces answered {status}: not now"),
    ):
        trace_receiver.send(SPANS, url)


def test_a_receiver_that_is_busy_is_sent_them_again(monkeypatch):
    """The library tries again while its time lasts; what it says last counts."""
    monkeypatch.setattr(trace_receiver, "TIMEOUT_SECONDS", 10.0)
    refusals = {"Retry-After": "0"}
    with receiving(503, b"busy", **refusals) as (url, asked):
        with pytest.raises(errors.TraceExportError, match="answered 503: busy"):
            trace_receiver.send(SPANS, url)
        assert len(asked) > 1
        assert {request == REQUEST for _, _, request in asked} == {True}


@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 307, 308])
def test_a_redirect_is_a_refusal(monkeypatch, status):
    """Followed it would be a GET, and its answer would look like success; or it would take the
    token elsewhere. The exporter itself counts it as a success."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20mine")
    with receiving() as (elsewhere, missed):
        with (
            receiving(status, b"", Location=elsewhere) as (url, _),
            pytest.raises(errors.TraceExportError, match=f"answered {status}"),
        ):
            trace_receiver.send(SPANS, url)
        assert missed == []


def test_a_password_of_this_machine_goes_nowhere(monkeypatch, tmp_path):
    """~/.netrc is for other programs; its entry would replace the header that was given."""
    (tmp_path / "netrc").write_text("default login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with receiving() as (url, asked):
        trace_receiver.send(SPANS, url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20mine")
        trace_receiver.send(SPANS, url)
    assert [headers.get("authorization") for _, headers, _ in asked] == [None, "Bearer mine"]


def test_nobody_there_is_told():
    """With the address and what should be there."""
    with receiving() as (url, _):
        pass
    with pytest.raises(errors.TraceExportError, match="is it a receiver of OTLP over HTTP"):
        trace_receiver.send(SPANS, url)


@pytest.mark.parametrize(
    ("endpoint", "says"),
    [
        ("collector:4318", "http://collector:4318"),
        ("ftp://collector", "'ftp://collector'"),
        ("http://", "with a host"),
        ("https://me:secret@collector", "OTEL_EXPORTER_OTLP_HEADERS"),
    ],
)
def test_an_endpoint_that_is_none_is_refused(endpoint, says):
    """Before anything is sent; a password is not repeated."""
    with pytest.raises(errors.InputError) as refused:
        trace_receiver.traces_url(endpoint)
    assert says in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "text", ["secret", "=secret", "a b=secret", "a=secret%0d%0ax: y", "a=secret%C3%A9"]
)
def test_a_header_that_is_none_is_refused(text):
    """The variable is named, and what it holds is not."""
    with pytest.raises(errors.InputError) as refused:
        trace_receiver.check_headers({"OTEL_EXPORTER_OTLP_HEADERS": text})
    assert "OTEL_EXPORTER_OTLP_HEADERS" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_no_header_is_shown_by_the_exporter(monkeypatch, caplog):
    """It logs what it cannot read: each is refused before, and all others are sent."""
    sent, refused = [], []
    with receiving() as (url, asked):
        for sign in map(chr, range(32, 127)):
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"a=secret{sign}s")
            try:
                trace_receiver.send(SPANS, url)
                sent.append(f"secret{sign}s")
            except errors.InputError as error:
                refused.append((sign, str(error)))
    assert [headers["a"] for _, headers, _ in asked] == sent
    assert [sign for sign, _ in refused] == ['"', ",", ";", "\\"]
    assert "secret" not in caplog.text + str(refused)


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """The run in the history of the command line's state folder."""
    monkeypatch.delenv("ROVER_KF_ON", raising=False)
    monkeypatch.setenv("ROVER_KF_STATE", str(tmp_path))
    monkeypatch.delenv("ROVER_KF_HISTORY", raising=False)
    with contextlib.closing(store.open_history(f"sqlite:///{tmp_path / 'history.db'}")) as history:
        history.upsert(RECORD)


def command(*words):
    with pytest.raises(SystemExit) as end:
        main(["trace", "llm", "-n", "team", *words])
    return end.value.code


@pytest.mark.usefixtures("recorded")
def test_the_command_prints_writes_and_sends(tmp_path, capsys, monkeypatch):
    """One request in all three; how much it was goes to standard error."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=1")
    assert command() == 0
    printed = capsys.readouterr()
    assert printed.out == otlp.text(SPANS)
    assert printed.err == "1 traces, 3 spans\n"
    with receiving() as (url, asked):
        assert command("--endpoint", url, "-o", str(tmp_path / "traces.json")) == 0
    ((_, told, document),) = asked
    assert told["x-token"] == "1"
    assert document == REQUEST
    assert (tmp_path / "traces.json").read_text() == otlp.text(SPANS)
    assert capsys.readouterr() == ("", "1 traces, 3 spans sent\n")


@pytest.mark.usefixtures("recorded")
def test_the_command_says_what_went_wrong(capsys):
    """A refusal ends with 1, a wrong URL with 2, a job that nobody knows with 1."""
    with receiving(503, b"full") as (url, _):
        assert command("--endpoint", url) == 1
    assert "answered 503: full" in capsys.readouterr().err
    assert command("--endpoint", "collector") == 2
    with pytest.raises(SystemExit) as end:
        main(["trace", "nobody"])
    assert end.value.code == 1
    assert "there is no PyTorchJob default/nobody" in capsys.readouterr().err


def test_without_the_extra_the_command_says_what_to_install():
    """And nothing else of the command line needs it."""
    script = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from rover_kf.cli import main; main(sys.argv[1:])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, "trace", "llm"], capture_output=True, check=False, text=True
    )
    assert ended.returncode == 2
    assert "pip install 'rover-kf[otel]'" in ended.stderr
