# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Nodes that the job's pods have found unfit, for a controller to keep the next pods away from."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable

from rover_kf.api.faults.limit_raises import OomKill
from rover_kf.api.membership import Failure, Member
from rover_kf.api.status import FaultyNode
from rover_kf.elastic.failures.rule import RAISE_MEMORY, REPLACE_NODE

MAX_KILLS = 8
"""The newest: one at the present limit is all that a controller needs of a replica type."""


class OomKills:
    """One a coordinator. Of a pod the last kill is kept."""

    def __init__(self) -> None:
        self._by_pod: collections.OrderedDict[str, OomKill] = collections.OrderedDict()

    def on_failure(self, failure: Failure) -> None:
        """A launcher told of a process that has died, for whatever reason."""
        if failure.action != RAISE_MEMORY:
            return
        self._by_pod.pop(failure.pod, None)
        self._by_pod[failure.pod] = OomKill(failure.pod, failure.observed_at, failure.memory_limit)
        while len(self._by_pod) > MAX_KILLS:
            self._by_pod.popitem(last=False)

    def all(self) -> tuple[OomKill, ...]:
        """Oldest first."""
        return tuple(self._by_pod.values())


MAX_NODES = 16
"""The newest; a controller has seen the others."""


MAX_REASON_LENGTH = 240


class FaultyNodes:
    """One a coordinator."""

    def __init__(self) -> None:
        self.nodes: tuple[FaultyNode, ...] = ()
        """Each node once, by what was found of it last; newest last."""

    def on_failure(self, failure: Failure, members: Iterable[Member], now: float) -> None:
        """A training process has failed; now in Unix seconds."""
        node = next((member.node for member in members if member.pod == failure.pod), "")
        if failure.action == REPLACE_NODE and not failure.consequence and node:
            self.add(FaultyNode(node, failure.pod, failure.kind, failure.reason, now))

    def add(self, *reported: FaultyNode) -> None:
        """Take in what was found, now or by an earlier coordinator."""
        newest: dict[str, FaultyNode] = {}
        for one in sorted((*self.nodes, *reported), key=lambda node: node.observed_at):
            newest.pop(one.node, None)
            newest[one.node] = dataclasses.replace(one, reason=one.reason[:MAX_REASON_LENGTH])
        self.nodes = tuple(newest.values())[-MAX_NODES:]
