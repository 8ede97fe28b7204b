# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A pod joins a little before training processes can be forked, never before torch is there."""

from __future__ import annotations

import pathlib
import queue
from typing import Any

import pytest

from rover_kf.launcher.event_loop import EventLoop
from rover_kf.launcher.preload import rest_seconds
from rover_kf.launcher.sidecar_requests import SidecarConnector
from rover_kf.launcher.worker_group import AHEAD_SECONDS, WorkerGroup
from rover_kf.launcher.zygote_client import TorchLoaded, ZygoteClient, ZygoteReady

SHORT, LONG = TorchLoaded(0.1), TorchLoaded(100.0)


@pytest.mark.parametrize(
    ("known", "to_come", "taken"),
    [
        ([], [SHORT, ZygoteReady()], 1),
        ([], [LONG, ZygoteReady(), ZygoteReady()], 2),
        ([SHORT], [ZygoteReady()], 0),
        ([LONG, ZygoteReady()], [ZygoteReady()], 0),
        ([LONG], [ZygoteReady(), ZygoteReady()], 1),
    ],
)
def test_a_pod_joins_when_it_is_nearly_ready(known, to_come, taken):
    """It waits for torch, and for the rest too where that takes longer than it may be early."""
    assert rest_seconds(SHORT.seconds) < AHEAD_SECONDS < rest_seconds(LONG.seconds)
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    crew = WorkerGroup(ZygoteClient(events), {})
    for event in known:
        crew.on_event(event)
    for event in to_come:
        events.put(event)
    crew.wait_nearly_ready(
        EventLoop(SidecarConnector(pathlib.Path("nowhere")), events, crew.on_event)
    )
    assert events.qsize() == len(to_come) - taken


class Idle(ZygoteClient):
    """Starts no zygote: the test says what one tells."""

    def start(self, inherited):
        pass

    def stop(self):
        pass


def test_a_pod_is_measured_when_all_is_loaded():
    """Not when its store is open, nor by guess."""
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    crew = WorkerGroup(Idle(events), {})
    errands = EventLoop(SidecarConnector(pathlib.Path("nowhere")), events, crew.on_event)
    crew.start()
    for event in (SHORT, LONG, ZygoteReady(), SHORT):
        events.put(event)
    crew.wait_ready(errands)
    assert events.qsize() == 1
    crew.wait_ready(errands)
    assert events.qsize() == 1
