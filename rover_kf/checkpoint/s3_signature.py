# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""AWS Signature Version 4 for requests without a body; pure."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import urllib.parse
from collections.abc import Mapping

_EMPTY = hashlib.sha256(b"").hexdigest()


@dataclasses.dataclass(frozen=True, slots=True)
class Account:
    """Who asks; its secrets are not printed."""

    key: str = dataclasses.field(repr=False)
    secret: str = dataclasses.field(repr=False)
    token: str = dataclasses.field(repr=False)
    """Of a session; may be empty."""
    region: str


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """What is asked; path and query are not quoted yet."""

    method: str
    host: str
    """With the port if it is not the scheme's own."""
    path: str
    query: Mapping[str, str]

    @property
    def target(self) -> str:
        """Path and query as they are sent."""
        return f"{urllib.parse.quote(self.path)}?{self.quoted_query}"

    @property
    def quoted_query(self) -> str:
        """In the order that is signed."""
        pairs = ((_quote(key), _quote(value)) for key, value in self.query.items())
        return "&".join(f"{key}={value}" for key, value in sorted(pairs))


def headers(account: Account, request: Request, *, now: str) -> dict[str, str]:
    """Headers of the request, its signature among them.

    Args:
        account: who asks.
        request: what is asked.
        now: such as ``20261121T190000Z``.
    """
    sent = {"host": request.host, "x-amz-content-sha256": _EMPTY, "x-amz-date": now}
    if account.token:
        sent["x-amz-security-token"] = account.token
    signed = ";".join(sorted(sent))
    lines = "".join(f"{name}:{sent[name]}\n" for name in sorted(sent))
    path = urllib.parse.quote(request.path)
    canonical = f"{request.method}\n{path}\n{request.quoted_query}\n{lines}\n{signed}\n{_EMPTY}"
    scope = f"{now[:8]}/{account.region}/s3/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    key = f"AWS4{account.secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{digest}"
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    stated = f"Credential={account.key}/{scope},SignedHeaders={signed},Signature={signature}"
    return {**sent, "Authorization": f"AWS4-HMAC-SHA256 {stated}"}


def _quote(text: str) -> str:
    return urllib.parse.quote(text, safe="")
