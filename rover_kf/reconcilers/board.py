# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What one process knows of all its jobs together, and of the room that they share.

It is a cache: a controller that has just started knows each job once it has looked at it, and
what was decided is on the jobs themselves. Nodes with their pods are read when a job would change,
or others lack room, and never more than a twentieth of the time.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Mapping

from rover_kf import errors
from rover_kf.api.jobs import JobKey
from rover_kf.api.surroundings import NodeRoom, Surroundings
from rover_kf.cluster.protocol import Cluster
from rover_kf.reconcilers import surroundings
from rover_kf.scaling.competition import ALL, Member, Share, View, promised, shares

LOG = logging.getLogger(__name__)

FRESH_SECONDS = 10.0
"""How long what nodes have left is believed while no job of ours changes."""
MOST_OF_THE_TIME = 20.0
"""Seconds until the next reading, for each that the last one took."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Reading:
    """Nodes at one time, and what follows for all jobs."""

    nodes: tuple[NodeRoom, ...] | None = None
    shares: Mapping[str, Share] = dataclasses.field(default_factory=dict)
    unread: str = ""
    fresh_until: float = 0.0
    not_before: float = 0.0


class Board:
    """Jobs by their keys; used by several threads.

    Args:
        cluster: where they run.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._members: dict[JobKey, Member] = {}
        self._short: set[JobKey] = set()
        self._changed = True
        self._reading = _Reading()

    def known(self, key: JobKey) -> Member | None:
        """The job as it was put here last."""
        with self._lock:
            return self._members.get(key)

    def put(self, key: JobKey, member: Member | None) -> None:
        """Put a job here as it is now; None takes it away."""
        with self._lock:
            before = self._members.pop(key, None)
            self._short.discard(key)
            if member is not None:
                self._members[key] = member
                if member.short:
                    self._short.add(key)
            self._changed |= _room_of(before) != _room_of(member)

    def learn(self, key: JobKey, wants: int) -> None:
        """Note how many replicas the job would have, were there room; 0: what it asks for."""
        found = self.known(key)
        if found is not None and found.wants != wants:
            self.put(key, dataclasses.replace(found, wants=wants))

    def others_short(self, key: JobKey) -> bool:
        """Whether another job lacks room."""
        with self._lock:
            return len(self._short) > (key in self._short)

    def view(self, key: JobKey, mine: Member, now: float) -> View:
        """What is around a job.

        Args:
            key: of the job.
            mine: as it was put here.
            now: Unix seconds.

        Raises:
            ClusterUnavailable: the cluster did not answer.
        """
        objects = self._cluster.surroundings(key.namespace)
        reading = self._read(now)
        around = surroundings.of(objects, reading.nodes)
        if reading.unread:
            around = dataclasses.replace(around, unread=(*around.unread, reading.unread))
        with self._lock:
            members = list(self._members.values())
        neighbours = [one for one in members if one.namespace == key.namespace]
        quotas = Surroundings(None, around.quotas)
        found = (
            shares(neighbours, quotas).get(mine.name, ALL),
            reading.shares.get(mine.name, ALL),
        )
        others = (one for one in members if one.name != mine.name)
        left = promised(around, others)
        return View(left, mine.need, min(found, key=lambda share: share.most))

    def _read(self, now: float) -> _Reading:
        with self._lock:
            reading, members = self._reading, list(self._members.values())
            fresh = now < reading.fresh_until and not self._changed
            if fresh or now < reading.not_before:
                return reading
            self._changed = False
        began = time.perf_counter()
        nodes, unread = self._nodes()
        found = shares(members, Surroundings(nodes))
        paused = now + MOST_OF_THE_TIME * (time.perf_counter() - began)
        reading = _Reading(nodes, found, unread, now + FRESH_SECONDS, paused)
        with self._lock:
            self._reading = reading
        return reading

    def _nodes(self) -> tuple[tuple[NodeRoom, ...] | None, str]:
        try:
            nodes = self._cluster.list_nodes()
            if nodes is None:
                return None, ""
            return surroundings.node_rooms(nodes, self._cluster.every_pod()), ""
        except errors.InputError as refusal:
            LOG.info("room on nodes is not looked at: %s", refusal)
            return None, f"room on nodes is not looked at: {refusal}"


def _room_of(member: Member | None) -> tuple[object, ...]:
    """What of a job others' room depends on."""
    if member is None:
        return ()
    return member.asked, member.places, member.short, member.wants
