# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Several jobs, one capacity: they shrink for each other instead of waiting, and grow back."""

from __future__ import annotations

import pytest
from memory_cluster import Killed
from memory_fleet import MemoryFleet

from rover_kf.api import names
from rover_kf.reconcilers.reconciler import Reconciler

MODE, LEAST, MOST = "scaling.mode", "scaling.min", "scaling.max"


def grows(nodes):
    return 2.0 / nodes


def told(job, reason):
    return [event.message for event in job.events if event.reason == reason]


@pytest.fixture
def fleet(clock):
    return MemoryFleet(clock, 3)


@pytest.fixture
def run(fleet, history):
    """So many windows, looked at by a controller that lives as long."""
    controller = Reconciler(fleet, history, clock=fleet.clock)

    def go(windows):
        for _ in range(windows):
            fleet.run(controller.run_once)

    return go


def test_a_job_gives_room_to_one_that_waits_and_takes_it_back(fleet, run):
    """Alone it grows to three of three cores. A second one finds no core: the first gives one, told
    on it with for whom; both train. When the second has ended the first has three again."""
    first = fleet.add("first", law=grows)
    run(14)
    assert fleet.sizes() == {"first": 3}
    second = fleet.add("second", law=grows, **{MOST: "1"})
    run(4)
    assert fleet.sizes() == {"first": 2, "second": 1}
    (given,) = [line for line in told(first, names.EVENT_SCALE_DECISION) if "gives" in line]
    assert "gives 1 of 3 replicas: PyTorchJob team/second lacks room" in given
    run(8)
    assert fleet.sizes() == {"first": 2, "second": 1}, "nothing more moves"
    assert second.resizes == []
    fleet.end("second")
    run(10)
    assert fleet.sizes()["first"] == 3
    assert first.resizes == [(1, 2), (2, 3), (3, 2), (2, 3)]


def test_a_job_of_fixed_size_gets_its_room_too(fleet, run):
    """The one that waits need not be elastic; it gets all its pods or none would help it."""
    fleet.add("first", law=grows)
    run(14)
    fleet.add("second", workers=2, law=grows, **{MODE: "off"})
    run(4)
    assert fleet.sizes() == {"first": 1, "second": 2}


def test_a_job_that_is_bound_by_its_fewest_gives_nothing(fleet, run):
    """Bounds of the owner go before others' wants."""
    fleet.add("first", workers=3, law=grows, **{LEAST: "3"})
    run(3)
    fleet.add("second", law=grows)
    run(5)
    assert fleet.sizes() == {"first": 3, "second": 0}


def test_a_job_that_trains_with_fewer_pods_settles_for_them(fleet, run):
    """Asked for five where three have room: after two minutes it asks for the three, is steady
    again, and grows by the rule when there is more room."""
    job = fleet.add("first", workers=5, law=grows, **{MOST: "5"})
    job.trains_with_fewer = True
    run(10)
    assert job.resizes == [], "a pod may find a node yet"
    run(6)
    assert job.resizes == [(5, 3)]
    (line,) = [line for line in told(job, names.EVENT_SCALE_DECISION) if "settles" in line]
    assert line.startswith("settles for 3 of 5 replicas: no node has had room for 2 of its pods")
    fleet.cores = [*fleet.cores, "n3"]
    run(10)
    assert job.resizes == [(5, 3), (3, 4)]


def test_a_job_settles_for_nothing_below_its_fewest(fleet, run):
    """What its owner needs at least is asked for until it is there."""
    job = fleet.add("first", workers=5, law=grows, **{MOST: "5", LEAST: "4"})
    job.trains_with_fewer = True
    run(16)
    assert job.resizes == []


def test_weight_decides_between_two_that_both_would_grow(clock, history):
    """Of four cores two like jobs have two each; one that counts ten times as much has three."""
    for weight, sizes in (("1", {"a": 2, "b": 2}), ("10", {"a": 1, "b": 3})):
        fleet = MemoryFleet(clock, 4)
        controller = Reconciler(fleet, history, clock=clock)
        fleet.add("a", law=grows)
        fleet.add("b", law=grows, **{"scaling.weight": weight})
        for _ in range(20):
            fleet.run(controller.run_once)
        assert fleet.sizes() == sizes, weight


def test_no_room_is_no_change_and_is_told_once(fleet, run):
    """A job that would grow beyond what there is stays, with what that ends at."""
    fleet.add("a", law=grows)
    fleet.add("b", workers=2, law=grows, **{MODE: "off"})
    run(8)
    assert fleet.sizes() == {"a": 1, "b": 2}
    (line,) = told(fleet.jobs["a"], names.EVENT_SCALE_REFUSED)
    assert "nodes have room for 0 more of its pods" in line
    assert fleet.jobs["a"].resizes == []


@pytest.mark.parametrize("point", range(1, 9))
def test_a_controller_killed_anywhere_gives_way_once(point, clock, history):
    """Killed at any write while the first job gives way, the next controller completes that: one
    replica is given, not two."""
    fleet = MemoryFleet(clock, 3)
    first = fleet.add("first", law=grows)
    controller = Reconciler(fleet, history, clock=clock)
    for _ in range(14):
        fleet.run(controller.run_once)
    fleet.add("second", law=grows, **{MOST: "1"})
    before = list(first.resizes)
    first.kill_at = first.calls + point
    killed = 0
    for _ in range(8):
        killed += _is_killed(fleet, Reconciler(fleet, history, clock=clock))
    assert killed == 1
    # A new controller knows each job once it has looked at it: one window more at most.
    assert first.resizes == [*before, (3, 2)]
    assert fleet.sizes() == {"first": 2, "second": 1}


def _is_killed(fleet, controller):
    try:
        fleet.run(controller.run_once)
    except Killed:
        return True
    return False


def test_readings_are_few(fleet, run):
    """Nodes and pods are read when something is wanted, not at every look."""
    fleet.add("a", law=grows, **{MOST: "2"})
    run(6)
    before = fleet.readings
    run(10)
    assert fleet.readings == before
