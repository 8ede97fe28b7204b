# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Requests to the API server as plain JSON, with its refusals as errors of our tree.

The generated classes of the client are not used: jobs have none, and plain data keeps fields that
this version of the client does not know. Beside cluster.kubernetes the only ``kubernetes`` import.
"""

from __future__ import annotations

import http
import json
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

import kubernetes.client
import urllib3.exceptions
from kubernetes.watch.watch import iter_resp_lines

from rover_kf import errors

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
"""Of Kubernetes' own kinds alone: an item of a list is found by its name."""
CONNECT_SECONDS, READ_SECONDS = 5.0, 30.0
_PAGE = 200
"""Objects that are parsed at a time: of pods, each takes sixty kilobytes of memory."""

Query = Mapping[str, str | int | bool]


def resource_path(prefix: str, *segments: str) -> str:
    """Join a path of the API server; a segment names one object, whatever it contains.

    Args:
        prefix: written in this project, such as ``/api/v1``.
        *segments: of objects and collections, also those that a tenant has stated.

    Raises:
        InputError: a segment is empty or leads elsewhere.
    """
    for segment in segments:
        if segment in ("", ".", ".."):
            raise errors.InputError(f"{segment!r} is not the name of an object")
    return "/".join((prefix, *(urllib.parse.quote(segment, safe=":") for segment in segments)))


class ResourceVersionExpired(Exception):
    """The version to watch from is too old (410); list again. Never leaves this package."""


class KubernetesApi:
    """The requests that KubernetesCluster makes; ``what`` names the object in errors."""

    def __init__(self, client: kubernetes.client.ApiClient) -> None:
        self._client = client

    def request(
        self,
        method: str,
        path: str,
        *,
        what: str,
        query: Query | None = None,
        body: object | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        """Send a request from ``/api`` or ``/apis`` on; its reply is JSON, or error_for() it."""
        headers = {"Content-Type": content_type}
        response = self._call(method, path, what=what, query=query, body=body, headers=headers)
        return dict(json.loads(_read(response)))

    def text(self, path: str, *, what: str, query: Query | None = None) -> str:
        """Return what is read there as text; errors as in request()."""
        return _read(self._call("GET", path, what=what, query=query))

    def items(self, path: str, *, what: str, query: Query | None = None) -> list[dict[str, Any]]:
        """All items of a collection."""
        return list(self.iterate(path, what=what, query=query))

    def iterate(
        self, path: str, *, what: str, query: Query | None = None
    ) -> Iterator[dict[str, Any]]:
        """The same one after another, page by page: a large collection is never held whole."""
        for page in self.pages(path, what=what, query=query):
            yield from page.get("items") or ()

    def pages(
        self, path: str, *, what: str, query: Query | None = None, limit: int = _PAGE
    ) -> Iterator[dict[str, Any]]:
        """Replies with so many items of a collection each."""
        page = ""
        while True:
            asked = {**(query or {}), "limit": limit, **({"continue": page} if page else {})}
            reply = self.request("GET", path, what=what, query=asked)
            yield reply
            page = (reply.get("metadata") or {}).get("continue") or ""
            if not page:
                return

    def watch(self, path: str, *, what: str, query: Query, seconds: float) -> Iterator[Any]:
        """Changes of a collection: ``{"type": …, "object": …}``; ends when the server ends it.

        Raises:
            Expired: the resourceVersion in the query is too old.
            ClusterUnavailable: the connection broke.
        """
        asked = {**query, "watch": True, "timeoutSeconds": max(1, round(seconds))}
        limit = seconds + READ_SECONDS
        response = self._call("GET", path, what=what, query=asked, read_seconds=limit)
        try:
            for line in iter_resp_lines(response):
                change = json.loads(line)
                if change["type"] == "ERROR":
                    if change["object"].get("code") == http.HTTPStatus.GONE:
                        raise ResourceVersionExpired
                    raise errors.ClusterUnavailable(f"{what}: {change['object'].get('message')}")
                yield change
        except urllib3.exceptions.HTTPError as cause:
            raise errors.ClusterUnavailable(f"watching {what} broke off: {cause}") from cause
        finally:
            response.close()

    def _call(
        self,
        method: str,
        path: str,
        *,
        what: str,
        query: Query | None,
        body: object | None = None,
        headers: Mapping[str, str] | None = None,
        read_seconds: float = READ_SECONDS,
    ) -> Any:
        try:
            return self._client.call_api(
                path,
                method,
                query_params=[(key, _plain(value)) for key, value in (query or {}).items()],
                header_params={"Accept": "application/json, */*", **(headers or {})},
                body=body,
                auth_settings=["BearerToken"],
                _return_http_data_only=True,
                _preload_content=False,
                _request_timeout=(CONNECT_SECONDS, read_seconds),
            )
        except kubernetes.client.ApiException as cause:
            raise error_for(cause.status, cause.body, what) from cause
        except urllib3.exceptions.HTTPError as cause:
            message = f"{what}: the API server does not answer: {cause}"
            raise errors.ClusterUnavailable(message) from cause


def error_for(status: int | None, body: object, what: str) -> Exception:
    """The error for a refusal, with the API server's own message.

    404 is NoSuchJob (KindNotServed if the server does not know the kind), 409 is JobExists
    or Conflict, 410 is Expired, 408, 429 and 5xx are ClusterUnavailable, the rest is InputError.
    """
    reply = _status_of(body)
    message = f"{what}: {reply.get('message') or f'the API server answered {status}'}"
    if status == http.HTTPStatus.NOT_FOUND:
        if not reply:
            advice = "is the Training Operator v1 installed?"
            return errors.KindNotServed(f"{what}: the API server has no such kind; {advice}")
        return errors.NoSuchJob(message)
    if status == http.HTTPStatus.CONFLICT:
        exists = reply.get("reason") == "AlreadyExists"
        return errors.JobExists(message) if exists else errors.Conflict(message)
    if status == http.HTTPStatus.GONE:
        return ResourceVersionExpired()
    retry = (http.HTTPStatus.REQUEST_TIMEOUT, http.HTTPStatus.TOO_MANY_REQUESTS)
    if not status or status in retry or status >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
        return errors.ClusterUnavailable(message)
    return errors.InputError(message)


def _status_of(body: object) -> dict[str, Any]:
    try:
        parsed = json.loads(body if isinstance(body, (str, bytes)) else "")
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _read(response: Any) -> str:
    try:
        return str(response.data.decode("utf-8", errors="replace"))
    finally:
        response.release_conn()


def _plain(value: str | int | bool) -> str:  # noqa: FBT001 - a query's value, not a switch
    return str(value).lower() if isinstance(value, bool) else str(value)
