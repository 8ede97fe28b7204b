# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What coordinators are told: how many pods come, which cannot, where they are, which are lost."""

from __future__ import annotations

import logging

from rover_kf import errors
from rover_kf.api import codec, names
from rover_kf.api.coordinator_address import PodAddresses
from rover_kf.api.jobs import JobKey
from rover_kf.api.status import AbsentRequest, Acknowledged, LostRequest, ScaleRequest
from rover_kf.cluster.protocol import Cluster
from rover_kf.reconcilers.plan import Announce, Excuse, Locate, Order, Renew

LOG = logging.getLogger(__name__)


def give(cluster: Cluster, key: JobKey, order: Order) -> None:
    """Tell it.

    Raises:
        ClusterUnavailable: it is not heard, or refused, and what follows depends on it.
    """
    match order:
        case Announce():
            _announce(cluster, key, order)
        case Excuse():
            _excuse(cluster, key, order)
        case Locate():
            _locate(cluster, key, order)
        case Renew():
            _renew(cluster, key, order)


def _announce(cluster: Cluster, key: JobKey, order: Announce) -> None:
    body = ScaleRequest(order.nodes, order.reason)
    try:
        reply = cluster.call_coordinator(key, "POST", names.PATH_SCALE, body)
        answer = codec.loads(Acknowledged, reply)
    except errors.OutOfReach as error:  # it sees who comes and goes
        LOG.info("%s: it is not announced: %s", key, error)
        return
    except (errors.InputError, errors.ClusterUnavailable) as error:
        answer = Acknowledged(done=False, reason=str(error))
    if not answer.done:
        message = f"the coordinator does not take {order.nodes} pods: {answer.reason}"
        if order.must:
            raise errors.ClusterUnavailable(message)
        LOG.warning("%s: %s", key, message)


def _excuse(cluster: Cluster, key: JobKey, order: Excuse) -> None:
    body = AbsentRequest(order.ranks, order.reason)
    try:
        cluster.call_coordinator(key, "POST", names.PATH_ABSENT, body)
    except errors.ClusterUnavailable as error:  # the round waits for as long as it would
        LOG.warning("%s: it waits for pods that cannot come: %s", key, error)


def _locate(cluster: Cluster, key: JobKey, order: Locate) -> None:
    body = PodAddresses(dict(order.addresses))
    try:
        cluster.call_coordinator(key, "POST", names.PATH_PODS, body)
    except errors.ClusterUnavailable as error:  # the pods find each other by name
        LOG.info("%s: it is not told where its pods are: %s", key, error)


def _renew(cluster: Cluster, key: JobKey, order: Renew) -> None:
    body = LostRequest(order.lost.uid, order.reason)
    try:
        cluster.call_coordinator(key, "POST", names.PATH_LOST, body, pod=order.pod)
    except errors.OutOfReach as error:  # its requests wait for as long as TCP does
        LOG.warning("%s: nobody is told that %s is lost: %s", key, order.lost.name, error)
