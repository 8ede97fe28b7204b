# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What coordinators are told: how many pods come, which cannot, where they are, which are lost."""

from __future__ import annotations

import logging

from rover_kf import errors
from rover_kf.api import codec, names
from rover_kf.api.jobs import JobKey
from rover_kf.api.membership import PodAddresses
from rover_kf.api.status import Ack, ScaleRequest, ServerLostRequest, UnavailablePodsRequest
from rover_kf.cluster.protocol import Cluster
from rover_kf.reconcilers.plan import (
    AnnounceResize,
    CoordinatorCall,
    MarkUnavailable,
    RestartRound,
    SendAddresses,
)

LOG = logging.getLogger(__name__)


def send(cluster: Cluster, key: JobKey, order: CoordinatorCall) -> None:
    """Tell it.

    Raises:
        ClusterUnavailable: it is not heard, or refused, and what follows depends on it.
    """
    match order:
        case AnnounceResize():
            _announce_resize(cluster, key, order)
        case MarkUnavailable():
            _mark_unavailable(cluster, key, order)
        case SendAddresses():
            _send_addresses(cluster, key, order)
        case RestartRound():
            _restart_round(cluster, key, order)


def _announce_resize(cluster: Cluster, key: JobKey, order: AnnounceResize) -> None:
    body = ScaleRequest(order.nodes, order.reason)
    try:
        reply = cluster.call_coordinator(key, "POST", names.PATH_SCALE, body)
        answer = codec.loads(Ack, reply)
    except errors.Unreachable as error:  # it sees who comes and goes
        LOG.info("%s: it is not announced: %s", key, error)
        return
    except (errors.InputError, errors.ClusterUnavailable) as error:
        answer = Ack(done=False, reason=str(error))
    if not answer.done:
        message = f"the coordinator does not take {order.nodes} pods: {answer.reason}"
        if order.required:
            raise errors.ClusterUnavailable(message)
        LOG.warning("%s: %s", key, message)


def _mark_unavailable(cluster: Cluster, key: JobKey, order: MarkUnavailable) -> None:
    body = UnavailablePodsRequest(order.ranks, order.reason)
    try:
        cluster.call_coordinator(key, "POST", names.PATH_ABSENT, body)
    except errors.ClusterUnavailable as error:  # the round waits for as long as it would
        LOG.warning("%s: it waits for pods that cannot come: %s", key, error)


def _send_addresses(cluster: Cluster, key: JobKey, order: SendAddresses) -> None:
    body = PodAddresses(dict(order.addresses))
    try:
        cluster.call_coordinator(key, "POST", names.PATH_PODS, body)
    except errors.ClusterUnavailable as error:  # the pods find each other by name
        LOG.info("%s: it is not told where its pods are: %s", key, error)


def _restart_round(cluster: Cluster, key: JobKey, order: RestartRound) -> None:
    body = ServerLostRequest(order.lost.uid, order.reason)
    try:
        cluster.call_coordinator(key, "POST", names.PATH_LOST, body, pod=order.pod)
    except errors.Unreachable as error:  # its requests wait for as long as TCP does
        LOG.warning("%s: nobody is told that %s is lost: %s", key, order.lost.name, error)
