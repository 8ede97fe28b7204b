# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Manifests on their way to the cluster: read, checked, injected, submitted.

The measured bandwidth of a job's storage becomes an annotation, since a pod's grace depends on it:
so a later patch results in the same job.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import logging
import os
import pathlib
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.cluster_capacity import Headroom, NamespaceLimits
from rover_kf.api.jobs import Event, JobKey, Manifest, ObservedJob
from rover_kf.client import manifests, namespace_limits
from rover_kf.client.connection import Connection
from rover_kf.client.manifests import ManifestSource
from rover_kf.cluster.local import LocalCluster
from rover_kf.cluster.protocol import Cluster
from rover_kf.history.history_protocol import HistoryStore
from rover_kf.injection import storage_mount
from rover_kf.injection.inject import Injected, inject
from rover_kf.injection.policy.rover_policy import RoverPolicy
from rover_kf.injection.validation import validate
from rover_kf.job_kinds.registry import kind_of
from rover_kf.recommender.constraints import Constraints
from rover_kf.recommender.recommend import recommend


@runtime_checkable
class KubeflowClient(Protocol):
    """``kubeflow.training.TrainingClient``, known by its attributes: nothing is imported."""

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


BANDWIDTH_KEY = f"{names.PREFIX}checkpoint.storage-bandwidth"


def apply_storage_bandwidth(
    source: ManifestSource, history: HistoryStore
) -> tuple[ManifestSource, str]:
    """Return the source with its storage's bandwidth in earlier runs, and a line.

    A source that states a bandwidth, or has no storage, stays as it is; so does one of which the
    history knows nothing.

    Raises:
        InputError: the manifest cannot be used.
    """
    metadata = source.job["metadata"]
    annotations = metadata.get("annotations") or {}
    policy = RoverPolicy.from_annotations(annotations, source=source.name).checkpoint
    if policy.path is None or policy.storage_bandwidth is not None:
        return source, ""
    found = recommend(source.job, history, source=source.name).get("storage_rate")
    if found is None:
        return source, ""
    # What is below the least that may be stated is a storage that hardly answers.
    rate = max(round(found.target), 1 << 20)
    job = {
        **source.job,
        "metadata": {**metadata, "annotations": {**annotations, BANDWIDTH_KEY: str(rate)}},
    }
    return source.with_job(job), f"{BANDWIDTH_KEY} {rate} ({rate / 1e6:.0f} MB/s): {found.why}"


def check_storage(source: ManifestSource) -> None:
    """Refuse an embedded job whose checkpoint path is not on a volume and cannot be written here.

    (Volumes are the embedded cluster's to look at.)

    Raises:
        PolicyError: with the path and why it cannot be written.
    """
    policy = validate.validate(source.job, source=source.name, allow_unmounted=True)
    path = policy.checkpoint.path
    if path is None:
        return
    if storage_mount.is_url(path):
        allowed = "a folder: an embedded run has no Secret with an object store's credentials"
        key = f"{names.PREFIX}checkpoint.path"
        raise errors.PolicyError(key, path, allowed=allowed, source=source.name)
    job_kind = kind_of(source.job)
    for replica in job_kind.replicas(source.job):
        if storage_mount.covering_mount(job_kind.trainer(replica), path) is None:
            why = unwritable_reason(pathlib.Path(path))
            if why:
                key = f"{names.PREFIX}checkpoint.path"
                allowed = f"a folder on a volume or one that can be written here ({why})"
                raise errors.PolicyError(key, path, allowed=allowed, source=source.name)


def unwritable_reason(folder: pathlib.Path) -> str:
    """Why a folder cannot be made and written; empty if it can. Makes nothing."""
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not place.is_dir():
        return f"{place} is no folder"
    if not os.access(place, os.W_OK | os.X_OK):
        return f"{place} is not to be written by this user"
    if os.statvfs(place).f_flag & os.ST_RDONLY or str(place).startswith(("/proc", "/sys")):
        return f"{place} is read-only"
    return ""


def apply_cluster_bounds(
    cluster: Cluster, namespace: str, given: Constraints | None
) -> Constraints:
    """Fill in nodes, quotas and limit ranges where the user states none."""
    wanted = given or Constraints()
    found = _limits(cluster, namespace)
    return dataclasses.replace(
        wanted,
        nodes=wanted.nodes or found.nodes,
        quotas=(*wanted.quotas, *found.quotas),
        container_max=found.container_max,
        container_min=found.container_min,
        unread=(*wanted.unread, *found.unread),
    )


def _limits(cluster: Cluster, namespace: str) -> NamespaceLimits:
    if isinstance(cluster, LocalCluster):
        # Embedded replicas share the cores of one machine: they bound a replica, not their sum.
        cores, pages = os.cpu_count() or 1, os.sysconf("SC_PHYS_PAGES")
        room = Headroom(cpu=float(cores), memory=float(pages * os.sysconf("SC_PAGE_SIZE")))
        return NamespaceLimits(container_max=room)
    api = getattr(cluster, "api", None)
    if api is None:
        return NamespaceLimits(unread=("this cluster's limits cannot be read",))
    return namespace_limits.read(api, namespace)


LOG = logging.getLogger(__name__)
Given = Manifest | Model | pathlib.Path | str
"""A job: a mapping, a model of kubeflow's client, a path, or a text of YAML or JSON."""


def read(given: Given) -> manifests.ManifestSource:
    """Load a job of any form."""
    return manifests.load(manifest_of(given) if isinstance(given, Model) else given)


def patch(connection: Connection, source: manifests.ManifestSource) -> Injected:
    """Inject a job with what its storage took in earlier runs."""
    source, _ = apply_storage_bandwidth(source, connection.history)
    if connection.embedded:
        check_storage(source)
    return inject(
        source.job,
        settings=connection.settings.injection,
        source=source.name,
        allow_unmounted=connection.embedded is not None,
    )


def submit(
    connection: Connection, source: manifests.ManifestSource, *, inject: bool = True
) -> ObservedJob:
    """Create a job; an embedded one that is injected is reconciled in this process."""
    patched = Injected(dict(source.job))
    if inject:
        patched = patch(connection, _with_raised_memory(source, connection.history))
    if connection.embedded:
        job = connection.embedded.create_job(patched.manifest, folder=source.folder)
    else:
        job = connection.cluster.create_job(patched.manifest)
    for event in patched.warnings:
        _emit(connection.cluster, job.key, event)
    if inject and connection.embedded:
        connection.reconcilers.add(job.key)
    return job


def _emit(cluster: Cluster, key: JobKey, event: Event) -> None:
    """Put an Event on a job that is there: who may create jobs may not always create Events."""
    try:
        cluster.emit(key, event)
    except (errors.InputError, errors.ClusterUnavailable) as refusal:
        LOG.warning("%s: %s: %s (no Event tells it: %s)", key, event.reason, event.message, refusal)


def _with_raised_memory(
    source: manifests.ManifestSource, history: HistoryStore
) -> manifests.ManifestSource:
    """With the memory that runs alike had to be given, as far as the job's policy goes."""
    annotations = source.job["metadata"].get("annotations") or {}
    most = RoverPolicy.from_annotations(annotations, source=source.name).memory.max
    if most is None:
        return source
    found = recommend(source.job, history, source=source.name)
    return manifests.apply_learned_memory(source, found, max_limit=most)
