# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The way to a cluster: from inside one of its pods, or with a kubeconfig."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import kubernetes.client
import kubernetes.config

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import JobKey
from rover_kf.cluster.kubernetes import KubernetesCluster
from rover_kf.cluster.kubernetes_mirrored import MirroredCluster
from rover_kf.cluster.kubernetes_transport import PodNetwork


def from_environment(
    *,
    kubeconfig: str | None = None,
    context: str | None = None,
    token_file: pathlib.Path = pathlib.Path(names.TOKEN_HOME) / "token",
) -> KubernetesCluster:
    """Connect as a pod of the cluster, or else with a kubeconfig.

    Args:
        kubeconfig: file to use; None takes a pod's service account where there is one, else
            ``$KUBECONFIG`` and ``~/.kube/config``.
        context: of the kubeconfig; None takes its current one.
        token_file: shown to coordinators, inside a cluster.

    Raises:
        ClusterUnavailable: there is neither.
    """
    client, inside = _client(kubeconfig, context)
    return KubernetesCluster(client, PodNetwork(token_file) if inside else None)


def mirrored(
    changed: Callable[[JobKey], None], *, token_file: pathlib.Path, namespace: str = ""
) -> MirroredCluster:
    """The same for who looks at many jobs; it has them in memory once it is told to follow.

    Args:
        changed: told the keys of jobs that somebody else has changed.
        token_file: shown to coordinators, inside a cluster.
        namespace: whose jobs; empty: all.

    Raises:
        ClusterUnavailable: there is no cluster.
    """
    client, inside = _client(None, None)
    transport = PodNetwork(token_file) if inside else None
    return MirroredCluster(client, transport, changed, namespace=namespace)


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
    try:
        kubernetes.config.load_kube_config(kubeconfig, context, configuration)
    except (kubernetes.config.ConfigException, OSError) as cause:
        message = f"no cluster to talk to: {cause}; set KUBECONFIG, or run embedded"
        raise errors.ClusterUnavailable(message) from cause
    return kubernetes.client.ApiClient(configuration), False
