# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The last status of a coordinator as far as a container's status can hold it."""

from __future__ import annotations

import dataclasses

import pytest

from rover_kf.api import termination_log
from rover_kf.api.data import DataStatus
from rover_kf.api.jobs import Event
from rover_kf.api.samples import Goodput, Throughput
from rover_kf.api.status import CoordinatorStatus

BARE = CoordinatorStatus(
    "digits", "finished", 3, 2, 2, 4, 100, 100, 98, 96, 12.5, 1, (), Goodput(), (), 10.0, 90.0
)


def window(number: int) -> Throughput:
    fields = {field.name: 0 for field in dataclasses.fields(Throughput)}
    return Throughput(**{**fields, "started_at": float(number), "ended_at": number + 1.0})


def rows(name: str) -> DataStatus:
    return DataStatus(name, 1, 3, 8, 6, 1, 0, 2.5)


def test_all_that_fits_comes_back():
    """Figures, data sets, Events and windows."""
    data = tuple(rows(f"rows-{number}") for number in range(2))
    windows = tuple(window(number) for number in range(3))
    events = tuple(Event("Why", "so", sequence=number) for number in (7, 8))
    status = dataclasses.replace(BARE, windows=windows, data=data, events=events)
    assert termination_log.unpack(termination_log.pack(status), "it") == status


def test_the_newest_events_leave_room_for_a_window():
    """Of many Events the newest stay, in their order."""
    events = tuple(Event("Why", "so " * 100, sequence=number) for number in range(1, 30))
    status = dataclasses.replace(BARE, windows=(window(1), window(2)), events=events)
    text = termination_log.pack(status)
    found = termination_log.unpack(text, "it")
    assert len(text.encode()) <= termination_log.MAX_BYTES
    assert found.windows
    assert found.events == events[len(events) - len(found.events) :] != ()


@pytest.mark.parametrize("windows", [64, 0])
def test_what_does_not_fit_is_left_out(windows):
    """Of many windows the newest stay, of a verdict the beginning; the figures always do."""
    status = dataclasses.replace(
        BARE,
        verdict="é" * 5000,
        windows=tuple(window(number) for number in range(windows)),
        data=tuple(rows("r" * 200) for _ in range(50)),
    )
    text = termination_log.pack(status)
    found = termination_log.unpack(text, "it")
    assert len(text.encode()) <= termination_log.MAX_BYTES
    assert (found.step, found.goodput, found.data) == (100, status.goodput, ())
    assert found.verdict == "é" * 200
    assert found.windows == status.windows[len(status.windows) - len(found.windows) :]
    assert bool(found.windows) is bool(windows)
