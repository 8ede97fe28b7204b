# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the API server says to one question, kept as it came."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from rover_kf import errors


class Api(Protocol):
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

    def items(self, path: str, *, what: str, query: Mapping[str, str] | None) -> list[Any]:
        """All items of a collection."""


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """One object; neither ``found`` nor ``refusal`` says that there is none."""

    found: Mapping[str, Any] | None = None
    refusal: str = ""
    """Why it was not told, in the API server's words."""


@dataclasses.dataclass(frozen=True, slots=True)
class Listing:
    """Objects of one kind."""

    items: tuple[Mapping[str, Any], ...] = ()
    refusal: str = ""
    """Why they were not told."""


def ask(api: Api, path: str, what: str) -> Answer:
    """Read one object."""
    return _answer(api, "GET", path, what)


def try_out(api: Api, path: str, what: str, body: Mapping[str, Any]) -> Answer:
    """Create an object without its being kept: the answer is what would be stored."""
    return _answer(api, "POST", path, what, query={"dryRun": "All"}, body=dict(body))


def ask_all(api: Api, path: str, what: str, query: Mapping[str, str] | None = None) -> Listing:
    """Read a collection."""
    try:
        return Listing(tuple(api.items(path, what=what, query=query)))
    except errors.RoverError as error:
        return Listing(refusal=str(error))


def _answer(api: Api, method: str, path: str, what: str, **given: Any) -> Answer:
    try:
        return Answer(api.request(method, path, what=what, **given))
    except errors.JobNotFound:
        return Answer()
    except errors.RoverError as error:
        return Answer(refusal=str(error))
