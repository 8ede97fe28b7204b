# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What kopf is given to do."""

from __future__ import annotations

import asyncio
import types

import kopf

from controller import main
from rover_kf.api.jobs import JobKey


def test_nothing_asks_kopf_for_a_finalizer():
    """kopf has one event handler and no other on any resource, so no job gets a finalizer."""
    registry = kopf.get_default_registry()
    assert [handler.fn for handler in registry._watching.get_all_handlers()] == [main.observe]
    for others in (registry._changing, registry._spawning, registry._webhooks, registry._indexing):
        assert not list(others.get_all_handlers())


def test_a_change_queues_the_key():
    """The event handler adds the job's key and looks at nothing else."""
    added = []
    memo = types.SimpleNamespace(
        rover=types.SimpleNamespace(queue=types.SimpleNamespace(add=added.append))
    )
    asyncio.run(main.observe(namespace="team", name="digits", memo=memo, type="DELETED"))
    assert added == [JobKey("team", "digits")]
