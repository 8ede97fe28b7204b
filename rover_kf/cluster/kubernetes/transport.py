# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Two ways to a job's coordinator: straight over the pod network, or through the API server.

The controller is in the pod network and shows its own token. A laptop is not: it reads through
the API server's pod proxy with the caller's own rights. The proxy drops the Authorization header,
so nothing that needs our token (POST) can pass there.
"""

from __future__ import annotations

import pathlib
from typing import Protocol

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import JobKey, Pod
from rover_kf.cluster import sidecar_request
from rover_kf.cluster.kubernetes.api import KubernetesApi


class Transport(Protocol):
    """How one request reaches a pod's sidecar."""

    def request(self, key: JobKey, pod: Pod, method: str, path: str, body: bytes | None) -> bytes:
        """Send it and return the reply's body.

        Raises:
            ClusterUnavailable: it cannot be reached, or refused.
        """


class PodNetworkTransport:
    """From a pod of the same cluster.

    Args:
        token_file: projected service-account token with audience rover-kf; read for each
            request, since the kubelet renews it. Beside it lies, where jobs' sidecars encrypt, a
            file with the certificates of their authorities.
    """

    def __init__(self, token_file: pathlib.Path) -> None:
        self._token_file = token_file
        self._authorities = token_file.with_name(names.CONTROLLER_AUTHORITIES)

    def request(self, key: JobKey, pod: Pod, method: str, path: str, body: bytes | None) -> bytes:
        """Send it to the pod's address."""
        if not pod.address or pod.phase != "Running":
            message = f"the coordinator of {key} ({pod.name}) is {pod.phase}: retry when it runs"
            raise errors.ClusterUnavailable(message)
        token = None
        # A pod that was not given one, such as a pipeline's step, may read what is open to all.
        if method != "GET" or self._token_file.exists():
            try:
                token = self._token_file.read_text().strip()
            except FileNotFoundError as cause:
                message = f"{method} {path} of {key} needs a token that this pod was not given"
                raise errors.Unreachable(message) from cause
            except OSError as cause:
                message = f"the token for coordinators cannot be read: {cause}"
                raise errors.ClusterUnavailable(message) from cause
        return sidecar_request.send(
            key, pod, method, path, body, token=token, authorities=self._authorities
        )


class ApiProxyTransport:
    """From outside the cluster; reads only."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api

    def request(
        self,
        key: JobKey,
        pod: Pod,
        method: str,
        path: str,
        body: bytes | None,  # noqa: ARG002 - a GET has none
    ) -> bytes:
        """Send a GET through ``pods/proxy``.

        Raises:
            Unreachable: it is another method.
            ClusterUnavailable: it cannot be reached, or refused.
        """
        if method != "GET":
            message = (
                f"{method} {path} of {key} needs the pod network: the API server's proxy drops the "
                "token; use scaling.mode auto, with which the controller does it"
            )
            raise errors.Unreachable(message)
        inner, _, text = path.partition("?")
        scheme = "https" if pod.uses_tls else "http"
        pods = f"/api/v1/namespaces/{key.namespace}/pods"
        target = f"{pods}/{scheme}:{pod.name}:{names.PORT}/proxy{inner}"
        query = dict(item.partition("=")[::2] for item in text.split("&") if item)
        try:
            what = f"the coordinator of {key}"
            return self._api.text("GET", target, what=what, query=query).encode()
        except (errors.NoSuchJob, errors.InputError, errors.Conflict) as cause:
            raise errors.ClusterUnavailable(str(cause)) from cause
