# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Who calls, by TokenReview, and what it may see, by SubjectAccessReview."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Protocol

from rover_kf import errors
from rover_kf.api import names

CACHE_SECONDS = 60.0
"""How long an answer of the API server is believed."""
CACHE_SIZE = 1024
"""Answers that are kept."""


class ReviewClient(Protocol):
    """Of the API server's client, what is needed here."""

    def request(self, method: str, path: str, *, what: str, body: object) -> dict[str, Any]:
        """One request whose reply is a JSON object."""


@dataclasses.dataclass(frozen=True, slots=True)
class Caller:
    """A user or a service account."""

    name: str
    uid: str
    groups: tuple[str, ...]


class ClusterAccess:
    """Asks the API server, and believes its answers for a minute.

    Args:
        api: client of the API server.
    """

    def __init__(self, api: ReviewClient) -> None:
        self._api = api
        self._callers: dict[str, tuple[float, Caller | None]] = {}
        self._allowed: dict[tuple[Caller, str | None], tuple[float, bool]] = {}

    def caller(self, token: str) -> Caller | None:
        """The account of a token for the API server's audience; None: nobody.

        Tokens for sidecars are refused: every pod of their job can read them.

        Raises:
            ClusterUnavailable: the API server does not answer.
        """
        known = self._callers.get(token)
        if known is not None and known[0] > time.monotonic():
            return known[1]
        found = self._review(token)
        _cache(self._callers, token, (time.monotonic() + CACHE_SECONDS, found))
        return found

    def may_see(self, caller: object, namespace: str | None) -> bool:
        """Whether the caller may list PyTorchJobs in a namespace; None: in all.

        Raises:
            ClusterUnavailable: the API server does not answer.
        """
        if not isinstance(caller, Caller):
            return False
        known = self._allowed.get((caller, namespace))
        if known is not None and known[0] > time.monotonic():
            return known[1]
        attributes = {
            "group": names.KUBEFLOW_GROUP,
            "resource": names.PYTORCHJOBS,
            "verb": "list",
            **({"namespace": namespace} if namespace else {}),
        }
        spec = {
            "user": caller.name,
            "uid": caller.uid,
            "groups": list(caller.groups),
            "resourceAttributes": attributes,
        }
        status = self._create("subjectaccessreviews", "SubjectAccessReview", spec, "authorization")
        found = bool(status.get("allowed"))
        _cache(self._allowed, (caller, namespace), (time.monotonic() + CACHE_SECONDS, found))
        return found

    def _review(self, token: str) -> Caller | None:
        status = self._create("tokenreviews", "TokenReview", {"token": token}, "authentication")
        user = status.get("user") or {}
        if not status.get("authenticated") or not user.get("username"):
            return None
        groups = tuple(str(group) for group in user.get("groups") or ())
        return Caller(str(user["username"]), str(user.get("uid", "")), groups)

    def _create(self, resource: str, kind: str, spec: dict[str, Any], group: str) -> dict[str, Any]:
        version = f"{group}.k8s.io/v1"
        body = {"apiVersion": version, "kind": kind, "spec": spec}
        path = f"/apis/{version}/{resource}"
        try:
            reply = self._api.request("POST", path, what=f"a {kind}", body=body)
        except errors.InputError as refusal:
            raise errors.ClusterUnavailable(f"{refusal}; the controller's role allows it") from None
        return dict(reply.get("status") or {})


def _cache(kept: dict[Any, Any], key: object, value: object) -> None:
    kept.pop(key, None)
    kept[key] = value
    while len(kept) > CACHE_SIZE:
        del kept[next(iter(kept))]
