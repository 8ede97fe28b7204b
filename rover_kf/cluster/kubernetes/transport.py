# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Two ways to a job's coordinator: straight over the pod network, or through the API server.

The controller is in the pod network and sends a token that is made for the job. A laptop is not: it
reads through the API server's pod proxy with the caller's own rights. The proxy drops the
Authorization header, so nothing that needs a token (POST) can pass there.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Protocol

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import JobKey, Pod
from rover_kf.cluster import sidecar_request
from rover_kf.cluster.kubernetes.api import KubernetesApi, resource_path


class Transport(Protocol):
    """How one request reaches a pod's sidecar."""

    def request(self, key: JobKey, pod: Pod, method: str, path: str, body: bytes | None) -> bytes:
        """Send it and return the reply's body, or raise ClusterUnavailable."""


class PodNetworkTransport:
    """A transport from a pod of the same cluster.

    Args:
        authorities: file with the certificates of the authorities of jobs whose sidecars encrypt.
        token: returns the token of a job; None: this pod may send no request that needs one, as
            the pod of a pipeline's step.
    """

    def __init__(
        self, authorities: pathlib.Path, token: Callable[[JobKey], str] | None = None
    ) -> None:
        self._authorities, self._token = authorities, token

    def request(self, key: JobKey, pod: Pod, method: str, path: str, body: bytes | None) -> bytes:
        """Send it to the pod's address."""
        if not pod.address or pod.phase != "Running":
            message = f"the coordinator of {key} ({pod.name}) is {pod.phase}: retry when it runs"
            raise errors.ClusterUnavailable(message)
        token = None
        if method != "GET":  # what is read is open to all: no token is sent for it
            if self._token is None:
                message = f"{method} {path} of {key} needs a token that this pod was not given"
                raise errors.Unreachable(message)
            token = self._token(key)
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
        """Send a GET through ``pods/proxy``; any other method is Unreachable."""
        if method != "GET":
            message = (
                f"{method} {path} of {key} needs the pod network: the API server's proxy drops the "
                "token; use scaling.mode auto, with which the controller does it"
            )
            raise errors.Unreachable(message)
        inner, _, text = path.partition("?")
        scheme = "https" if pod.uses_tls else "http"
        place = f"{scheme}:{pod.name}:{names.PORT}"
        pods = resource_path("/api/v1", "namespaces", key.namespace, "pods", place)
        target = f"{pods}/proxy{inner}"
        query = dict(item.partition("=")[::2] for item in text.split("&") if item)
        try:
            what = f"the coordinator of {key}"
            return self._api.text(target, what=what, query=query).encode()
        except (errors.NoSuchJob, errors.InputError, errors.Conflict) as cause:
            raise errors.ClusterUnavailable(str(cause)) from cause
