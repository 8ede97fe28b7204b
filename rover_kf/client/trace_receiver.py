# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Traces for a receiver, by OpenTelemetry's exporter over HTTP; needs the extra ``otel``.

The exporter's variables hold. A token belongs into ``OTEL_EXPORTER_OTLP_TRACES_HEADERS``, else
``OTEL_EXPORTER_OTLP_HEADERS`` (``key=value,key=value``, values as in URLs), not on a command line.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Mapping, Sequence

import requests
from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import ReadableSpan

from rover_kf import errors

PATH = "/v1/traces"
TIMEOUT_SECONDS = 10.0
"""For all tries: the exporter tries again where a receiver is away or busy."""
HEADERS = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
_HEADER = re.compile(r"\s*[-!#$%&'*+.^`|~\w]+\s*=([ !#-+\--:<-\[\]-~]*)", re.ASCII)
"""As the exporter reads one; it logs those that it cannot read."""


def send(spans: Sequence[ReadableSpan], endpoint: str) -> str:
    """Send traces to a receiver's URL; return what it reported of spans that it did not keep.

    Raises:
        InputError: the URL, or a header, is none.
        TraceExportError: the receiver refused them, or did not answer.
    """
    url = traces_url(endpoint)
    check_headers(os.environ)
    answers: list[requests.Response] = []
    with requests.Session() as session:
        session.hooks["response"].append(lambda answer, **_: answers.append(answer))
        session.auth = lambda request: request  # else an entry of ~/.netrc replaces the header
        OTLPSpanExporter(url, timeout=TIMEOUT_SECONDS, session=session).export(spans)
    if not answers:
        raise errors.TraceExportError(f"{url} does not answer; is it a receiver of OTLP over HTTP?")
    last = answers[-1]
    # The exporter follows no redirect, but takes it for a success.
    if last.status_code not in range(200, 300):
        raise errors.TraceExportError(f"{url} answered {last.status_code}: {last.text[:300]}")
    return _rejection_message(last.content)


def traces_url(endpoint: str) -> str:
    """Where traces go at a receiver.

    Raises:
        InputError: it is no URL of HTTP.
    """
    parts = urllib.parse.urlsplit(endpoint)
    if parts.username is not None:
        raise errors.InputError(
            f"the endpoint has a user name; put what it needs into {HEADERS[1]}"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        allowed = "http:// or https:// with a host, as http://collector:4318"
        raise errors.InputError(f"the endpoint is {endpoint!r}; allowed: {allowed}")
    path = parts.path.rstrip("/")
    return parts._replace(path=path if path.endswith(PATH) else path + PATH).geturl()


def check_headers(environment: Mapping[str, str]) -> None:
    """Refuse headers that the exporter would leave out and show in its log: one may be a token.

    Raises:
        InputError: one is not of the form key=value.
    """
    name = next((name for name in HEADERS if environment.get(name)), "")
    for part in filter(str.strip, environment.get(name, "").split(",")):
        header = _HEADER.fullmatch(part)
        value = urllib.parse.unquote(header[1]) if header else "\n"
        if not (value.isascii() and value.isprintable()):
            message = f"{name} has a part that is not key=value of a header, values as in URLs"
            raise errors.InputError(message)


def _rejection_message(answer: bytes) -> str:
    """A receiver's word on spans that were not kept, or a warning of it."""
    try:
        partial = ExportTraceServiceResponse.FromString(answer).partial_success
    except DecodeError:  # it took them, and answers in another format
        return ""
    message: str = partial.error_message[:300]
    if not partial.rejected_spans:
        return message
    return f"{partial.rejected_spans} spans were not kept: {message or 'no reason given'}"
