# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Sends traces to who collects them, by OTLP over HTTP with JSON.

Variables are those of OpenTelemetry's own exporters: ``OTEL_EXPORTER_OTLP_TRACES_HEADERS``, else
``OTEL_EXPORTER_OTLP_HEADERS`` (``key=value,key=value``, values as in URLs), for a token that is not
to stand on a command line.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from rover_kf import errors

PATH = "/v1/traces"
TIMEOUT_SECONDS = 10.0
HEADERS = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
_NAME = re.compile(r"[-!#$%&'*+.^`|~\w]+", re.ASCII)
"""Of a header."""
_MOST_READ = 1 << 16
"""Bytes of an answer."""


class _Unmoved(urllib.request.HTTPRedirectHandler):
    """A redirect is a refusal: what follows it is a GET, and the answer to that says nothing."""

    def redirect_request(self, *_: object) -> None:
        """None: the redirect is raised as an error."""


def send(
    document: Mapping[str, Any], endpoint: str, environment: Mapping[str, str] | None = None
) -> str:
    """Send traces.

    Args:
        document: an ExportTraceServiceRequest in OTLP's JSON.
        endpoint: URL of the receiver; ``/v1/traces`` is added where it does not end with it.
        environment: with headers, by the variables above.

    Returns:
        What the receiver said of spans that it did not keep; empty: nothing.

    Raises:
        InputError: the URL, or a header, is none.
        TracesNotTaken: the receiver refused them, or did not answer.
    """
    url = address(endpoint)
    request = urllib.request.Request(  # noqa: S310 - the scheme is checked
        url,
        data=json.dumps(document).encode(),
        method="POST",
        headers={**headers(environment or {}), "Content-Type": "application/json"},
    )
    try:
        with urllib.request.build_opener(_Unmoved).open(request, timeout=TIMEOUT_SECONDS) as reply:
            return _left_out(reply.read(_MOST_READ))
    except urllib.error.HTTPError as refusal:
        with refusal:
            said = refusal.read(_MOST_READ).decode(errors="replace")[:300]
        raise errors.TracesNotTaken(f"{url} answered {refusal.code}: {said}") from refusal
    except (OSError, ValueError) as cause:
        message = f"{url} does not take traces: {cause}; is it a receiver of OTLP over HTTP?"
        raise errors.TracesNotTaken(message) from cause


def address(endpoint: str) -> str:
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


def headers(environment: Mapping[str, str]) -> dict[str, str]:
    """Headers of the variables; those of traces go before those of all.

    Raises:
        InputError: one is not of the form key=value.
    """
    name = next((name for name in HEADERS if environment.get(name)), "")
    found = {}
    for part in filter(str.strip, environment.get(name, "").split(",")):
        key, separator, text = part.partition("=")
        value = urllib.parse.unquote(text.strip())
        # Not shown: it may be a token.
        if not (
            separator and _NAME.fullmatch(key.strip()) and value.isascii() and value.isprintable()
        ):
            raise errors.InputError(f"{name} has a part that is not key=value of a header")
        found[key.strip()] = value
    return found


def _left_out(answer: bytes) -> str:
    """An ExportTraceServiceResponse's word on spans that were not kept, or a warning of it."""
    try:
        found = json.loads(answer or b"{}")
    except ValueError:  # it took them, and answers in another format
        return ""
    partial = found.get("partialSuccess") if isinstance(found, dict) else None
    if not isinstance(partial, dict):
        return ""
    rejected = str(partial.get("rejectedSpans") or 0)
    message = str(partial.get("errorMessage") or "")[:300]
    if rejected == "0":
        return message
    return f"{rejected} spans were not kept: {message or 'no reason given'}"
