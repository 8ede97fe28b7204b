# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A controller's history over HTTP, for pipeline steps and notebooks; satisfies HistoryStore.

It is read only: records are written by the controller. Which namespaces are seen is the server's
decision, by the caller's token.
"""

from __future__ import annotations

import json
import os
import pathlib
import ssl
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from rover_kf import errors
from rover_kf.api import codec, names
from rover_kf.api.records import JobSignature, RunRecord

TIMEOUT_SECONDS = 20.0
SERVICE_ACCOUNT = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
TOKEN_VARIABLE, TOKEN_FILE_VARIABLE = "ROVER_KF_TOKEN", "ROVER_KF_TOKEN_FILE"
AUTHORITY_VARIABLE = "ROVER_KF_HISTORY_CA"
MAX_BYTES = 64 << 20
"""Of an answer."""
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer as any other: the token must not follow it."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


class RemoteHistory:
    """A history behind a controller's URL; safe to share between threads.

    Every method raises HistoryUnavailable where the server does not answer, or refuses the token.
    Those that write always do.

    Args:
        url: such as ``https://rover-kf-webhook.rover-kf-system.svc``.
        token: file with the caller's token; by default ROVER_KF_TOKEN_FILE, else the pod's own.
        authority: file with the certificate that signed the server's; by default
            ROVER_KF_HISTORY_CA, else the system's.
    """

    def __init__(
        self, url: str, *, token: pathlib.Path | None = None, authority: pathlib.Path | None = None
    ) -> None:
        self._url = url.rstrip("/")
        self._token = token
        self._authority = authority

    def close(self) -> None:
        """Nothing is kept open."""

    def upsert(self, record: RunRecord) -> None:
        """Refused: the controller alone writes."""
        raise self._read_only(record.uid)

    def get(self, uid: str) -> RunRecord | None:
        """The record of that uid; None if there is none that the caller may see."""
        found = self._request("GET", f"{names.PATH_HISTORY}/{urllib.parse.quote(uid, safe='')}")
        return None if found is None else codec.decode(RunRecord, found)

    def similar(self, signature: JobSignature, limit: int = 50) -> tuple[RunRecord, ...]:
        """Runs of the same kind, most alike first, of namespaces that the caller may see."""
        path = f"{names.PATH_HISTORY}:similar?limit={limit}"
        return self._decode_records(self._request("POST", path, codec.dumps(signature)))

    def list(
        self,
        *,
        namespace: str | None = None,
        name: str | None = None,
        outcome: str | None = None,
        visible_from: str | None = None,  # noqa: ARG002 - the server decides by the caller's token
        limit: int = 100,
    ) -> tuple[RunRecord, ...]:
        """Newest runs first, filtered by what is given."""
        wanted = {"namespace": namespace, "name": name, "outcome": outcome, "limit": str(limit)}
        query = {key: value for key, value in wanted.items() if value is not None}
        path = f"{names.PATH_HISTORY}?{urllib.parse.urlencode(query)}"
        return self._decode_records(self._request("GET", path))

    def delete(self, uid: str) -> bool:
        """Refused: the controller alone writes."""
        raise self._read_only(uid)

    def retain(self, *, newer_than: float) -> int:
        """Refused: the controller alone writes."""
        raise self._read_only(f"what is older than {newer_than:g}")

    def _decode_records(self, payload: Any) -> tuple[RunRecord, ...]:
        return tuple(codec.decode(RunRecord, item) for item in (payload or {}).get("runs", ()))

    def _request(self, method: str, path: str, body: bytes | None = None) -> Any:
        self._check_url()
        request = urllib.request.Request(  # noqa: S310 - the scheme is checked
            f"{self._url}{path}",
            data=body,
            method=method,
            headers={"Authorization": f"Bearer {self._bearer()}"},
        )
        try:
            handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
            if self._url.startswith("https://"):
                handlers.append(urllib.request.HTTPSHandler(context=self._context()))
            opener = urllib.request.build_opener(*handlers)
            with opener.open(request, timeout=TIMEOUT_SECONDS) as reply:
                return json.loads(reply.read(MAX_BYTES))
        except urllib.error.HTTPError as refusal:
            with refusal:
                if refusal.code == 404:  # noqa: PLR2004 - not found
                    return None
                said = refusal.read().decode(errors="replace")[:300]
            raise self._unavailable(f"it answered {refusal.code}: {said}") from refusal
        except (OSError, ValueError) as cause:
            raise self._unavailable(str(cause)) from cause

    def _check_url(self) -> None:
        """The token opens the API server: it is sent encrypted, or stays on this machine."""
        parts = urllib.parse.urlsplit(self._url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise self._unavailable(f"{self._url} is no URL")
        if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            raise self._unavailable("the token would be sent in clear text: use https://")

    def _bearer(self) -> str:
        if TOKEN_VARIABLE in os.environ and self._token is None:
            return os.environ[TOKEN_VARIABLE].strip()
        path = self._token or pathlib.Path(os.environ.get(TOKEN_FILE_VARIABLE, SERVICE_ACCOUNT))
        try:
            return path.read_text(encoding="utf-8").strip()
        except OSError as cause:
            raise self._unavailable(
                f"there is no token to show: {cause}; set {TOKEN_VARIABLE}"
            ) from cause

    def _context(self) -> ssl.SSLContext:
        stated = os.environ.get(AUTHORITY_VARIABLE)
        authority = self._authority or (pathlib.Path(stated) if stated else None)
        return ssl.create_default_context(cafile=str(authority) if authority else None)

    def _unavailable(self, why: str) -> errors.HistoryUnavailable:
        return errors.HistoryUnavailable(f"the history at {self._url} cannot be used: {why}")

    def _read_only(self, what: str) -> errors.HistoryUnavailable:
        return self._unavailable(f"{what} is not changed: it is read only, the controller writes")
