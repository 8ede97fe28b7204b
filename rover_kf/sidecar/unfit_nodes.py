# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Nodes that the job's pods have found unfit, for a controller to keep the next pods away from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from rover_kf.api.membership import Failure, Member
from rover_kf.api.nodes import UnfitNode
from rover_kf.elastic.failures.rule import REPLACE_NODE

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
