# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What kopf is given to do."""

from __future__ import annotations

import asyncio
import types

from controller import main


def test_nothing_asks_kopf_for_a_finalizer():
    """kopf has event handlers and no other on any resource, so no job gets a finalizer; none at all
    where nodes may not be seen."""
    assert not list(main.handlers(nodes=False)._watching.get_all_handlers())
    registry = main.handlers(nodes=True)
    watching = [handler.fn for handler in registry._watching.get_all_handlers()]
    assert watching == [main.observe_node]
    for others in (registry._changing, registry._spawning, registry._webhooks, registry._indexing):
        assert not list(others.get_all_handlers())


def test_a_node_is_told_silent_when_nobody_hears_it():
    """Unknown is silent; a kubelet that says it is not ready is heard, and so is a new node."""
    told = []

    async def node_seen(name, *, silent):
        told.append((name, silent))

    memo = types.SimpleNamespace(rover=types.SimpleNamespace(node_seen=node_seen))
    for status in ("Unknown", "False", "True"):
        conditions = [{"type": "Ready", "status": status}]
        seen = {"conditions": conditions}
        asyncio.run(main.observe_node(name="n1", status=seen, memo=memo, type="MODIFIED"))
    asyncio.run(main.observe_node(name="n2", status={}, memo=memo, type="ADDED"))
    assert told == [("n1", True), ("n1", False), ("n1", False), ("n2", False)]
