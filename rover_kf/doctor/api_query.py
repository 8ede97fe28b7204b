# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the API server says to one question, kept as it came."""

from __future__ import annotations

import base64
import binascii
import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from rover_kf import errors


class ApiClient(Protocol):
    """Of the API server's client, what is needed here."""

    def request(
        self,
        method: str,
        path: str,
        *,
        what: str,
        query: Mapping[str, str | int | bool] | None = None,
        body: object | None = None,
    ) -> dict[str, Any]:
        """One request whose reply is a JSON object."""

    def items(self, path: str, *, what: str, query: Mapping[str, str] | None = None) -> list[Any]:
        """All items of a collection."""


@dataclasses.dataclass(frozen=True, slots=True)
class ObjectResult:
    """One object; neither ``found`` nor ``refusal`` says that there is none."""

    value: Mapping[str, Any] | None = None
    denial: str = ""
    """Why it was not told, in the API server's words."""


@dataclasses.dataclass(frozen=True, slots=True)
class ListResult:
    """Objects of one kind."""

    items: tuple[Mapping[str, Any], ...] = ()
    denial: str = ""


def get(api: ApiClient, path: str, what: str) -> ObjectResult:
    """Read one object."""
    return _request(api, "GET", path, what)


def dry_run_create(api: ApiClient, path: str, what: str, body: Mapping[str, Any]) -> ObjectResult:
    """Create an object without its being kept: the answer is what would be stored."""
    return _request(api, "POST", path, what, query={"dryRun": "All"}, body=dict(body))


def list_all(
    api: ApiClient, path: str, what: str, query: Mapping[str, str] | None = None
) -> ListResult:
    """Read a collection."""
    try:
        return ListResult(tuple(api.items(path, what=what, query=query)))
    except errors.RoverError as error:
        return ListResult(denial=str(error))


def _request(api: ApiClient, method: str, path: str, what: str, **given: Any) -> ObjectResult:
    try:
        return ObjectResult(api.request(method, path, what=what, **given))
    except errors.NoSuchJob:
        return ObjectResult()
    except errors.RoverError as error:
        return ObjectResult(denial=str(error))


def decode_base64(text: object) -> bytes:
    """Data of a Secret or a caBundle; empty where it is none."""
    try:
        return base64.b64decode(str(text or ""), validate=True)
    except binascii.Error:
        return b""
