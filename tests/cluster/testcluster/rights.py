# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Rights of Kubernetes as values: a verb on a resource, and all that could be asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
"""Of resources; every further one is in SPECIAL."""
RBAC = "rbac.authorization.k8s.io"


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on a resource (``pods/log``), or on the one object of that name."""

    group: str
    resource: str
    verb: str
    name: str = ""

    def __str__(self) -> str:
        group = self.group or "core"
        return f"{self.verb} {group}/{self.resource}{' ' if self.name else ''}{self.name}"


SPECIAL = (
    Right("", "users", "impersonate"),
    Right("", "groups", "impersonate"),
    Right("", "serviceaccounts", "impersonate"),
    Right("authentication.k8s.io", "userextras/scopes", "impersonate"),
    *(
        Right(RBAC, kind, verb)
        for kind in ("roles", "clusterroles")
        for verb in ("bind", "escalate")
    ),
    Right("certificates.k8s.io", "signers", "approve"),
    Right("certificates.k8s.io", "signers", "sign"),
)
"""What no discovery lists and would be the way to everything."""


@dataclasses.dataclass(frozen=True, slots=True)
class Resource:
    """Of the API server's discovery."""

    group: str
    name: str
    namespaced: bool


def every(resources: Iterable[Resource]) -> tuple[Right, ...]:
    """Every verb on every resource."""
    plain = [Right(one.group, one.name, verb) for one in resources for verb in VERBS]
    return (*plain, *SPECIAL)


def rights_of(rules: Iterable[Mapping[str, Any]]) -> Iterator[Right]:
    """What rules of a role give."""
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    for name in rule.get("resourceNames") or ("",):
                        yield Right(group, resource, verb, name)
