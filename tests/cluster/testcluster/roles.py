# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Roles that a test gives to accounts of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from testcluster.commands import Kubectl
from testcluster.objects import Object, apply
from testcluster.rights import RBAC, Right

_LABEL = "rover-kf.test/rights"


class Roles:
    """Roles of a test, gone after it.

    Args:
        cluster: where.
        namespace: of this test alone.
    """

    def __init__(self, cluster: Kubectl, namespace: str) -> None:
        self._cluster, self._namespace = cluster, namespace

    def give(self, given: Mapping[str, tuple[Collection[Right], Collection[Right]]]) -> None:
        """Let accounts have these rights.

        Args:
            given: by the user's name: rights in all namespaces, rights in the test's.
        """
        documents: list[Object] = []
        for user, (everywhere, here) in given.items():
            name = f"{self._namespace}-{user.rpartition(':')[2]}"
            documents += self._bound(name, user, everywhere, "ClusterRole")
            documents += self._bound(name, user, here, "Role")
        apply(self._cluster, documents)

    def _bound(
        self, name: str, user: str, rights: Collection[Right], kind: str
    ) -> Iterator[Object]:
        metadata: dict[str, Any] = {"name": name, "labels": {_LABEL: self._namespace}}
        if kind == "Role":
            metadata["namespace"] = self._namespace
        rules = [
            {"apiGroups": [one.group], "resources": [one.resource], "verbs": [one.verb]}
            | ({"resourceNames": [one.name]} if one.name else {})
            for one in sorted(rights)
        ]
        version = f"{RBAC}/v1"
        yield {"apiVersion": version, "kind": kind, "metadata": metadata, "rules": rules}
        yield {
            "apiVersion": version,
            "kind": f"{kind}Binding",
            "metadata": metadata,
            "roleRef": {"apiGroup": RBAC, "kind": kind, "name": name},
            "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
        }

    def forget(self) -> None:
        """Remove them; those of the namespace go with it."""
        kinds = "clusterroles,clusterrolebindings"
        self._cluster.kubectl("delete", kinds, "-l", f"{_LABEL}={self._namespace}")
