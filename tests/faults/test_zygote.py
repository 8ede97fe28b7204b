# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The process that loads torch, with nobody but its launcher's part that starts it."""

from __future__ import annotations

import os
import pathlib
import queue
from typing import Any

import pytest

from rover_kf.launcher.event_loop import EventLoop
from rover_kf.launcher.sidecar_requests import SidecarConnector
from rover_kf.launcher.worker_group import WorkerGroup
from rover_kf.launcher.zygote_client import ZygoteClient

pytestmark = pytest.mark.torch


def test_a_store_opens_before_all_is_loaded():
    """A pod needs no more than a store to join; what DDP loads comes after."""
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    seen: list[str] = []

    def note(event: object) -> None:
        seen.append(type(event).__name__)
        crew.on_event(event)

    crew = WorkerGroup(ZygoteClient(events), dict(os.environ))
    errands = EventLoop(SidecarConnector(pathlib.Path("nowhere")), events, note)
    crew.start()
    try:
        store = crew.claim_store(errands, "127.0.0.1")
        assert store.port
        while "ZygoteReady" not in seen:
            errands.next_event(60)
    finally:
        crew.zygote.stop()
    assert seen == ["TorchLoaded", "StoreOpened", "ZygoteReady"]
