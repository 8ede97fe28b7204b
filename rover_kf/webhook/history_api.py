# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The history over HTTP: runs of the namespaces in which the caller may see jobs, read only.

    GET  /v1/history?namespace=&name=&outcome=&limit=     {"runs": […]}
    GET  /v1/history/UID                                  a record, 404
    POST /v1/history:similar?limit=  (a JobSignature)     {"runs": […]}

Who calls is found by TokenReview, what it may see by SubjectAccessReview: runs of a namespace are
for those who may list PyTorchJobs there. Of other namespaces only those are seen that share theirs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from aiohttp import web

from rover_kf import errors
from rover_kf.api import codec, names
from rover_kf.api.records import JobSignature, RunRecord
from rover_kf.history.history_protocol import HistoryStore

MAX_RUNS = 1000

_log = logging.getLogger(__name__)


class Access(Protocol):
    """Who calls and what it may see; the cluster's answer."""

    def caller(self, token: str) -> object | None:
        """Who the token is of; None if it is of nobody."""

    def may_see(self, caller: object, namespace: str | None) -> bool:
        """Whether the caller may list jobs of a namespace; None: of all."""


class HistoryServer:
    """The server of a history's reads, by the cluster's access."""

    def __init__(self, history: HistoryStore, access: Access) -> None:
        self._history, self._access = history, access

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_get(names.PATH_HISTORY, self._list)
        app.router.add_get(f"{names.PATH_HISTORY}/{{uid}}", self._get)
        app.router.add_post(f"{names.PATH_HISTORY}:similar", self._similar)

    async def _list(self, request: web.Request) -> web.Response:
        def find(caller: object) -> object:
            asked = request.query
            namespace = asked.get("namespace")
            self._check(caller, namespace)
            found = self._history.list(
                namespace=namespace,
                name=asked.get("name"),
                outcome=asked.get("outcome"),
                limit=_limit(request),
            )
            return _encode_runs(found)

        return await self._answer(request, find)

    async def _get(self, request: web.Request) -> web.Response:
        def find(caller: object) -> object:
            found = self._history.get(request.match_info["uid"])
            # One that may not be seen is not there: its id tells nothing either.
            if found is None or not self._access.may_see(caller, found.signature.namespace):
                raise errors.NoSuchJob("there is no such run in a namespace that you may see")
            return codec.encode(found)

        return await self._answer(request, find)

    async def _similar(self, request: web.Request) -> web.Response:
        body = await request.read()

        def find(caller: object) -> object:
            signature = codec.loads(JobSignature, body)
            self._check(caller, signature.namespace)
            return _encode_runs(self._history.similar(signature, _limit(request)))

        return await self._answer(request, find)

    async def _answer(self, request: web.Request, find: Callable[[object], object]) -> web.Response:
        try:
            return web.json_response(await asyncio.to_thread(self._find, request, find))
        except _DeniedError as cause:
            return _error_response(cause.status, str(cause))
        except errors.NoSuchJob as cause:
            return _error_response(404, str(cause))
        except (errors.HistoryUnavailable, errors.ClusterUnavailable) as cause:
            _log.warning("the history is not served now: %s", cause)
            return _error_response(503, "the history cannot be read now")
        except (errors.ProtocolError, errors.InputError, ValueError) as cause:
            return _error_response(400, str(cause))

    def _find(self, request: web.Request, find: Callable[[object], object]) -> object:
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        caller = self._access.caller(token.strip()) if kind == "Bearer" and token else None
        if caller is None:
            raise _DeniedError(401, "show a token of this cluster: Authorization: Bearer …")
        return find(caller)

    def _check(self, caller: object, namespace: str | None) -> None:
        if not self._access.may_see(caller, namespace):
            where = f"the namespace {namespace}" if namespace else "all namespaces; name one"
            raise _DeniedError(403, f"you may not list PyTorchJobs in {where}")


class _DeniedError(Exception):
    """No token, one of nobody (401), or a namespace that the caller may not see (403)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _error_response(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)


def _encode_runs(records: tuple[RunRecord, ...]) -> object:
    return {"runs": [codec.encode(record) for record in records]}


def _limit(request: web.Request) -> int:
    stated = int(request.query.get("limit", "100"))
    if stated < 1:
        raise ValueError(f"limit is {stated}; allowed: 1 to {MAX_RUNS}")
    return min(stated, MAX_RUNS)
