# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The user's constraints with what the cluster, or this machine, has to give."""

from __future__ import annotations

import dataclasses
import os

from rover_kf.api.limits import NamespaceLimits, Room
from rover_kf.client import kubernetes_limits
from rover_kf.cluster.local import LocalCluster
from rover_kf.cluster.protocol import Cluster
from rover_kf.recommender.constraints import Constraints


def bounded(cluster: Cluster, namespace: str, given: Constraints | None) -> Constraints:
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
        container_most=found.container_most,
        container_least=found.container_least,
        unread=(*wanted.unread, *found.unread),
    )


def _limits(cluster: Cluster, namespace: str) -> NamespaceLimits:
    if isinstance(cluster, LocalCluster):
        # Embedded replicas share the cores of one machine: they bound a replica, not their sum.
        cores, pages = os.cpu_count() or 1, os.sysconf("SC_PHYS_PAGES")
        room = Room(cpu=float(cores), memory=float(pages * os.sysconf("SC_PAGE_SIZE")))
        return NamespaceLimits(container_most=room)
    api = getattr(cluster, "api", None)
    if api is None:
        return NamespaceLimits(unread=("this cluster's limits cannot be read",))
    return kubernetes_limits.read(api, namespace)
