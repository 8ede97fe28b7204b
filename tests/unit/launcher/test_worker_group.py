# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A pod joins a little before training processes can be forked, never before torch is there."""

from __future__ import annotations

import pathlib
import queue
from typing import Any

import pytest

from rover_kf.launcher.event_loop import Errands
from rover_kf.launcher.preload import rest_seconds
from rover_kf.launcher.sidecar_requests import SidecarClient
from rover_kf.launcher.worker_group import AHEAD_SECONDS, Crew
from rover_kf.launcher.zygote_client import Loading, Nursery, Ready

SHORT, LONG = Loading(0.1), Loading(100.0)


@pytest.mark.parametrize(
    ("known", "to_come", "taken"),
    [
        ([], [SHORT, Ready()], 1),
        ([], [LONG, Ready(), Ready()], 2),
        ([SHORT], [Ready()], 0),
        ([LONG, Ready()], [Ready()], 0),
        ([LONG], [Ready(), Ready()], 1),
    ],
)
def test_a_pod_joins_when_it_is_nearly_ready(known, to_come, taken):
    """It waits for torch, and for the rest too where that takes longer than it may be early."""
    assert rest_seconds(SHORT.seconds) < AHEAD_SECONDS < rest_seconds(LONG.seconds)
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    crew = Crew(Nursery(events), {})
    for event in known:
        crew.note(event)
    for event in to_come:
        events.put(event)
    crew.nearly_ready(Errands(SidecarClient(pathlib.Path("nowhere")), events, crew.note))
    assert events.qsize() == len(to_come) - taken


class Idle(Nursery):
    """Starts no zygote: the test says what one tells."""

    def start(self, inherited):
        pass

    def stop(self):
        pass


def test_a_pod_is_measured_when_all_is_loaded():
    """Not when its store is open, nor by guess."""
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    crew = Crew(Idle(events), {})
    errands = Errands(SidecarClient(pathlib.Path("nowhere")), events, crew.note)
    crew.start()
    for event in (SHORT, LONG, Ready(), SHORT):
        events.put(event)
    crew.ready(errands)
    assert events.qsize() == 1
    crew.ready(errands)
    assert events.qsize() == 1
