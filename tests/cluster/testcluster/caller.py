# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The API server as one account finds it, by impersonation: what it may do, and what it is told.

Accounts need not exist: a service account's rights come by its name and namespace alone.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kubernetes.client
import kubernetes.config

from testcluster.rights import Resource, Right, rights_of

_ASKED_AT_ONCE = 6


def account(namespace: str, name: str) -> str:
    """A service account as a user's name."""
    return f"system:serviceaccount:{namespace}:{name}"


class Caller:
    """One account.

    Args:
        kubeconfig: of somebody who may impersonate.
        user: its name; a service account's groups follow from it.
    """

    def __init__(self, kubeconfig: pathlib.Path, user: str) -> None:
        self.user = user
        configuration = kubernetes.client.Configuration()
        kubernetes.config.load_kube_config(str(kubeconfig), client_configuration=configuration)
        configuration.connection_pool_maxsize = _ASKED_AT_ONCE
        configuration.retries = False
        self.client = kubernetes.client.ApiClient(configuration)
        self.client.set_default_header("Impersonate-User", user)

    def request(self, method: str, path: str, body: object = None) -> Any:
        """One request; its reply's JSON.

        Raises:
            kubernetes.client.ApiException: it is refused.
        """
        reply = self.client.call_api(
            path,
            method,
            body=body,
            header_params={"Accept": "application/json", "Content-Type": "application/json"},
            auth_settings=["BearerToken"],
            _return_http_data_only=True,
            _preload_content=False,
        )
        return json.loads(reply.data)

    def discovered(self) -> tuple[Resource, ...]:
        """Everything that the API server has, subresources too, each once."""
        groups = {"": ["/api/v1"]}
        for group in self.request("GET", "/apis")["groups"]:
            groups[group["name"]] = [f"/apis/{one['groupVersion']}" for one in group["versions"]]
        found = {
            Resource(group, one["name"], one["namespaced"])
            for group, paths in groups.items()
            for path in paths
            for one in self.request("GET", path)["resources"]
        }
        return tuple(sorted(found, key=lambda one: (one.group, one.name)))

    def may(self, right: Right, namespace: str = "") -> bool:
        """Whether it has a right, in all namespaces if none is named; by the server's own word."""
        resource, _, below = right.resource.partition("/")
        asked = {
            "group": right.group,
            "resource": resource,
            "subresource": below,
            "verb": right.verb,
            "name": right.name,
            "namespace": namespace,
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        body = {"apiVersion": "authorization.k8s.io/v1", "spec": {"resourceAttributes": asked}}
        return bool(self.request("POST", path, body)["status"]["allowed"])

    def allowed(self, asked: Sequence[Right], namespace: str = "") -> set[Right]:
        """Those of many rights that it has."""
        with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
            answers = pool.map(lambda right: self.may(right, namespace), asked)
            return {right for right, answer in zip(asked, answers, strict=True) if answer}

    def told(self, namespace: str) -> tuple[set[Right], set[tuple[str, str]]]:
        """All its rights in a namespace, and verbs on paths that are no resources', as the server
        lists them."""
        path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
        body = {"apiVersion": "authorization.k8s.io/v1", "spec": {"namespace": namespace}}
        status = self.request("POST", path, body)["status"]
        urls = {
            (verb, url)
            for rule in status["nonResourceRules"]
            for verb in rule["verbs"]
            for url in rule["nonResourceURLs"]
        }
        return set(rights_of(status["resourceRules"])), urls
