# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The way to a cluster: from inside one of its pods, or with a kubeconfig."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable

import kubernetes.client
import kubernetes.config

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import JobKey
from rover_kf.cluster.kubernetes.api import KubernetesApi
from rover_kf.cluster.kubernetes.cached_cluster import CachedCluster
from rover_kf.cluster.kubernetes.coordinator_tokens import CoordinatorTokens
from rover_kf.cluster.kubernetes.kubernetes_cluster import KubernetesCluster
from rover_kf.cluster.kubernetes.transport import PodNetworkTransport


def from_environment(
    *, kubeconfig: str | None = None, context: str | None = None
) -> KubernetesCluster:
    """Connect as a pod of the cluster, or else with a kubeconfig.

    Args:
        kubeconfig: file to use; None takes a pod's service account where there is one, else
            ``$KUBECONFIG`` and ``~/.kube/config``.
        context: of the kubeconfig; None takes its current one.

    Raises:
        ClusterUnavailable: there is neither.
    """
    client, inside = _client(kubeconfig, context)
    authorities = pathlib.Path(names.TOKEN_HOME) / names.CONTROLLER_AUTHORITIES
    return KubernetesCluster(client, PodNetworkTransport(authorities) if inside else None)


def cached_from_environment(
    on_change: Callable[[JobKey], None],
    *,
    account: str,
    authorities: pathlib.Path,
    namespace: str = "",
) -> CachedCluster:
    """Return the same for many jobs, which it has in memory once it follows them.

    Args:
        on_change: told the keys of jobs that somebody else has changed.
        account: ``namespace:name`` of the controller's service account; coordinators accept its
            tokens, inside a cluster.
        authorities: file with the certificates of the authorities of jobs whose sidecars encrypt.
        namespace: whose jobs; empty: all.

    Raises:
        ClusterUnavailable: there is no cluster.
    """
    client, inside = _client(None, None)
    tokens = CoordinatorTokens(KubernetesApi(client), account)
    transport = PodNetworkTransport(authorities, tokens.get) if inside else None
    return CachedCluster(client, transport, on_change, namespace=namespace)


def _client(
    kubeconfig: str | None, context: str | None
) -> tuple[kubernetes.client.ApiClient, bool]:
    """A client, and whether we are in a pod of the cluster."""
    configuration = kubernetes.client.Configuration()
    if kubeconfig is None and context is None:
        try:
            kubernetes.config.load_incluster_config(configuration)
        except kubernetes.config.ConfigException:
            pass  # not in a pod: the kubeconfig below
        else:
            return kubernetes.client.ApiClient(configuration), True
    if not (found := _kubeconfigs(kubeconfig)):
        raise errors.ClusterUnavailable(_NO_KUBECONFIG)
    try:
        kubernetes.config.load_kube_config(kubeconfig, context, configuration)
    except (kubernetes.config.ConfigException, OSError) as cause:
        message = (
            f"no cluster to talk to: {', '.join(found)}: {cause}; mend it, set KUBECONFIG to "
            "another, or run embedded"
        )
        raise errors.ClusterUnavailable(message) from cause
    return kubernetes.client.ApiClient(configuration), False


_NO_KUBECONFIG = (
    "no cluster to talk to: this is no pod of one, and there is no kubeconfig; set KUBECONFIG to "
    "the file that the cluster's administrator gives out, put it to ~/.kube/config, or run embedded"
)


def _kubeconfigs(given: str | None) -> list[str]:
    """Files that are there of those that would be read; one that is named need not be."""
    if given is not None:
        return [given]
    told = os.environ.get("KUBECONFIG") or "~/.kube/config"
    return [path for path in told.split(os.pathsep) if pathlib.Path(path).expanduser().is_file()]
