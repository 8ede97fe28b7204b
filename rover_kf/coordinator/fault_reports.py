# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Nodes that the job's pods have found unfit, for a controller to keep the next pods away from."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable

from rover_kf.api.faults.faulty_nodes import UnfitNode
from rover_kf.api.faults.memory_raises import MemoryKill
from rover_kf.api.membership import Failure, Member
from rover_kf.elastic.failures.rule import RAISE_MEMORY, REPLACE_NODE

MOST_KILLS = 8


"""The newest: one at the present limit is all that a controller needs of a replica type."""


class MemoryKills:
    """One a coordinator. Of a pod the last kill is kept."""

    def __init__(self) -> None:
        self._kept: collections.OrderedDict[str, MemoryKill] = collections.OrderedDict()

    def heard(self, failure: Failure) -> None:
        """A launcher told of a process that has died, for whatever reason."""
        if failure.action != RAISE_MEMORY:
            return
        self._kept.pop(failure.pod, None)
        self._kept[failure.pod] = MemoryKill(failure.pod, failure.at, failure.memory_limit)
        while len(self._kept) > MOST_KILLS:
            self._kept.popitem(last=False)

    def all(self) -> tuple[MemoryKill, ...]:
        """Oldest first."""
        return tuple(self._kept.values())


MOST = 16


"""The newest; a controller has seen the others."""


LONGEST_REASON = 240


class UnfitNodes:
    """One a coordinator."""

    def __init__(self) -> None:
        self.known: tuple[UnfitNode, ...] = ()
        """Each node once, by what was found of it last; newest last."""

    def failed(self, failure: Failure, members: Iterable[Member], now: float) -> None:
        """A training process has failed; now in Unix seconds."""
        node = next((member.node for member in members if member.pod == failure.pod), "")
        if failure.action == REPLACE_NODE and not failure.consequence and node:
            self.add(UnfitNode(node, failure.pod, failure.kind, failure.reason, now))

    def add(self, *found: UnfitNode) -> None:
        """Take in what was found, now or by an earlier coordinator."""
        newest: dict[str, UnfitNode] = {}
        for one in sorted((*self.known, *found), key=lambda one: one.at):
            newest.pop(one.node, None)
            newest[one.node] = dataclasses.replace(one, reason=one.reason[:LONGEST_REASON])
        self.known = tuple(newest.values())[-MOST:]
