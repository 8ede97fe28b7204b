# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What kopf is given to do."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import types

from prometheus_client.parser import text_string_to_metric_families

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

    async def on_node_change(name, *, silent):
        told.append((name, silent))

    memo = types.SimpleNamespace(rover=types.SimpleNamespace(on_node_change=on_node_change))
    for status in ("Unknown", "False", "True"):
        conditions = [{"type": "Ready", "status": status}]
        seen = {"conditions": conditions}
        asyncio.run(main.observe_node(name="n1", status=seen, memo=memo, type="MODIFIED"))
    asyncio.run(main.observe_node(name="n2", status={}, memo=memo, type="ADDED"))
    assert told == [("n1", True), ("n1", False), ("n1", False), ("n2", False)]


def test_the_controller_exports_these_series_alone():
    """The library would add when it began to count, which is a setting of the whole process."""
    script = (
        "import kopf; kopf.run = lambda **given: print(given['memo'].rover.metrics())\n"
        "from controller import main; main.main()"
    )
    settings = {
        "ROVER_NAMESPACE": "rover-kf-system",
        "ROVER_SIDECAR_IMAGE": "sidecar:1",
        "ROVER_HISTORY": "sqlite://",
    }
    text = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **settings},
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    names = {one.name for family in text_string_to_metric_families(text) for one in family.samples}
    assert names == {
        "rover_kf_history_available",
        "rover_kf_history_failures_total",
        "rover_kf_decision_seconds_bucket",
        "rover_kf_decision_seconds_count",
        "rover_kf_decision_seconds_sum",
    }
