# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Manifests on their way to the cluster: read, injected, submitted."""

from __future__ import annotations

import dataclasses
import logging
import os
import pathlib

from rover_kf import errors
from rover_kf.api.cluster_capacity import Headroom, NamespaceLimits
from rover_kf.api.jobs import Event, JobKey, Manifest, ObservedJob
from rover_kf.client import manifests, namespace_limits, submit_checks
from rover_kf.client.connection import Connection
from rover_kf.client.kubeflow_client import Model, manifest_of
from rover_kf.client.storage_bandwidth import apply_storage_bandwidth
from rover_kf.cluster.local import LocalCluster
from rover_kf.cluster.protocol import Cluster
from rover_kf.history.history_protocol import HistoryStore
from rover_kf.injection.inject import Injected, inject
from rover_kf.injection.policy.rover_policy import RoverPolicy
from rover_kf.recommender.constraints import Constraints
from rover_kf.recommender.recommend import recommend


def apply_cluster_bounds(
    cluster: Cluster, namespace: str, given: Constraints | None
) -> Constraints:
    """The constraints with nodes, quotas and limit ranges filled in.

    Args:
        cluster: where the job will run.
        namespace: of the job.
        given: the user's own; what they state stands.
    """
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
        submit_checks.check_storage(source)
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
