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
from rover_kf.api.cluster_capacity import NodeRoom, Objects, PodNeed, Surroundings
from rover_kf.api.jobs import JobKey
from rover_kf.cluster.protocol import Cluster
from rover_kf.reconcilers import capacity
from rover_kf.scaling.fair_sharing import ALL, Member, Share, View, promised, shares

LOG = logging.getLogger(__name__)

FRESH_SECONDS = 10.0
"""How long what a namespace may have is believed, and what nodes have left while no job changes."""
MOST_OF_THE_TIME = 20.0
"""Seconds until the next reading, for each that the last one took."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Reading:
    """Nodes at one time, and what follows for all jobs."""

    nodes: tuple[NodeRoom, ...] | None = None
    """Less what jobs were promised."""
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
        self._reader = threading.Lock()
        self._members: dict[JobKey, Member] = {}
        self._short: set[JobKey] = set()
        self._changed = True
        self._reading = _Reading()
        self._objects: dict[str, tuple[float, Objects]] = {}
        """By namespace, with until when they are believed."""

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

    def learn(self, key: JobKey, wants: int, bound: str) -> None:
        """Note how many replicas the job would have, were there room, and where there is none.

        Args:
            key: of the job.
            wants: Worker replicas; 0: what it asks for.
            bound: what has no room for these.
        """
        found = self.known(key)
        if found is not None and (found.wants, found.bound) != (wants, bound):
            self.put(key, dataclasses.replace(found, wants=wants, bound=bound))

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
        reading = self._read(now)
        around = self._around(key, reading, now)
        found = [reading.shares.get(mine.name, ALL)]
        if around.quotas:
            with self._lock:
                members = [one for one in self._members.values() if one.namespace == key.namespace]
            found.append(shares(members, Surroundings(None, around.quotas)).get(mine.name, ALL))
        return View(around, mine.need, min(found, key=lambda share: share.most))

    def room(self, key: JobKey, need: PodNeed, now: float) -> View:
        """What is around a job whose size is not shared out with others'.

        Args:
            key: of the job.
            need: what one more pod of it asks for.
            now: Unix seconds.

        Raises:
            ClusterUnavailable: the cluster did not answer.
        """
        return View(self._around(key, self._read(now), now), need, ALL)

    def _around(self, key: JobKey, reading: _Reading, now: float) -> Surroundings:
        around = capacity.of(self._bounds(key.namespace, now), reading.nodes)
        if reading.unread:
            around = dataclasses.replace(around, unread=(*around.unread, reading.unread))
        return around

    def _bounds(self, namespace: str, now: float) -> Objects:
        with self._lock:
            until, known = self._objects.get(namespace, (0.0, Objects()))
        if now < until:
            return known
        found = self._cluster.surroundings(namespace)
        with self._lock:
            self._objects[namespace] = (now + FRESH_SECONDS, found)
            old = [name for name, (end, _) in self._objects.items() if end <= now]
            for name in old:
                del self._objects[name]
        return found

    def _read(self, now: float) -> _Reading:
        with self._lock:
            reading, members = self._reading, list(self._members.values())
            fresh = now < reading.fresh_until and not self._changed
            if fresh or now < reading.not_before:
                return reading
        # All pods of a cluster are many: one reads them at a time, the others go by the last time.
        if not self._reader.acquire(blocking=reading.fresh_until == 0):
            return reading
        try:
            return self._read_anew(members, now)
        finally:
            self._reader.release()

    def _read_anew(self, members: list[Member], now: float) -> _Reading:
        with self._lock:
            if now < self._reading.not_before:
                return self._reading  # somebody else was faster
            self._changed, before = False, self._reading.unread
        began = time.perf_counter()
        nodes, unread = self._nodes()
        if unread and unread != before:
            LOG.info("%s; jobs grow without regard to it, said once", unread)
        found = shares(members, Surroundings(nodes))
        nodes = promised(Surroundings(nodes), members).nodes
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
            return capacity.node_rooms(nodes, self._cluster.every_pod()), ""
        except errors.InputError as refusal:
            return None, f"room on nodes is not looked at: {refusal}"


def _room_of(member: Member | None) -> tuple[object, ...]:
    """What of a job others' room depends on."""
    if member is None:
        return ()
    return member.asked, member.places, member.short, member.wants
