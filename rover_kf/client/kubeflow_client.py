# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Kubeflow's own Python clients: their connection, and their models as plain manifests.

Nothing of kubeflow is imported: what a user brings is known by what it has.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from rover_kf import errors
from rover_kf.api.jobs import Manifest
from rover_kf.cluster.protocol import Cluster


@runtime_checkable
class KubeflowClient(Protocol):
    """``kubeflow.training.TrainingClient``."""

    custom_api: Any
    namespace: str
    job_kind: str


@runtime_checkable
class Model(Protocol):
    """A job or a part of one as kubeflow's and Kubernetes' clients have them."""

    attribute_map: Mapping[str, str]


def cluster_of(client: KubeflowClient) -> Cluster:
    """The cluster that a kubeflow client is connected with, by the same credentials."""
    # Only here, so that embedded work starts without loading the Kubernetes client.
    from rover_kf.cluster.kubernetes.kubernetes_cluster import KubernetesCluster  # noqa: PLC0415

    return KubernetesCluster(client.custom_api.api_client)


def manifest_of(model: Model) -> Manifest:
    """A model as it would be sent to the API server.

    Raises:
        InputError: it holds something that no manifest can.
    """
    found = _plain(model)
    return dict(found)


def _plain(value: object) -> Any:
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, Model):
        fields = value.attribute_map.items()
        found = {name: getattr(value, attribute) for attribute, name in fields}
        return {name: _plain(item) for name, item in found.items() if item is not None}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dt.datetime):
        return value.isoformat()
    raise errors.InputError(
        f"the job holds a {type(value).__name__}; allowed: plain data and models of kubeflow's or "
        "Kubernetes' Python clients"
    )
