# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the controller's benchmark is made of: stand-ins, shares of processors, its results file."""

from __future__ import annotations

import importlib.util
import json
import pathlib

import pytest
from testcluster.processes import Registry

from benchmarks.controller_bench import coordinators
from benchmarks.controller_bench.cpu_accounting import Taken, cpu_seconds
from benchmarks.controller_bench.histogram import Histogram
from rover_kf.api import codec
from rover_kf.api.status import CoordinatorStatus
from tests.support.waiting import eventually

BENCHMARKS = pathlib.Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def crowd(monkeypatch):
    """Stand-ins whose windows take a minute, and what turns their clock on."""
    now = [1_000_000.0]
    monkeypatch.setattr(coordinators.time, "time", lambda: now[0])

    def later(seconds):
        now[0] += seconds

    return coordinators.Crowd(60.0, 5), later


def asked(crowd):
    return codec.loads(CoordinatorStatus, crowd.status("10.200.0.1"))


def test_a_stand_in_speaks_as_a_coordinator(crowd):
    """Its status is read as any, its windows close when it says, and the newest 64 are told."""
    crowd, later = crowd
    first = asked(crowd)
    assert len(first.windows) == coordinators.KEPT
    later(first.window_closes - first.now - 0.1)
    assert asked(crowd).windows == first.windows
    later(0.2)
    second = asked(crowd)
    assert second.windows[:-1] == first.windows[1:]
    assert second.windows[-1].ended_at == pytest.approx(first.window_closes)


def test_what_a_stand_in_has_told_stays_as_it_was(crowd):
    """A change of size is seen in windows that begin after it, and in none that were told."""
    crowd, later = crowd
    before = asked(crowd)
    later(before.window_closes - before.now - 1)
    crowd.scale("10.200.0.1", 4)
    later(2)
    across = asked(crowd)
    assert across.windows[:-1] == before.windows[1:]
    later(across.window_closes - across.now + 1)
    after = asked(crowd)
    assert [window.nodes for window in after.windows[-2:]] == [2, 4]
    assert (after.nodes, after.expected_nodes) == (4, 4)


def test_a_window_that_nobody_asks_for_is_missed(crowd):
    """One that closed before the newest was asked for; what waits for long is late until then."""
    crowd, later = crowd
    first = asked(crowd)
    crowd.forget()
    later(first.window_closes - first.now + 65)
    asked(crowd)
    report = json.loads(crowd.report())
    assert (report["windows_missed"], report["late"]) == (1, {})
    later(75)
    (late,) = json.loads(crowd.report())["late"].values()
    assert late == {"missed": 0, "looks": 2, "silence": 75}
    later(62)
    (late,) = json.loads(crowd.report())["late"].values()
    assert late["missed"] == 1  # though nobody has asked since


def test_each_party_s_share_of_the_processors_is_told(tmp_path):
    """Of a process that does nothing but count, and of the machine that has it."""
    registry = Registry(tmp_path / "processes", tmp_path / "log")
    busy = registry.start("controller", ["sh", "-c", "while :; do :; done"])
    try:
        before = Taken.now(registry)
        least = cpu_seconds(busy) + 0.05
        eventually(lambda: cpu_seconds(busy) > least, what="some seconds of a processor")
        found = Taken.now(registry).since(before)
    finally:
        registry.stop([busy])
    assert found["cores_by"]["controller"] > 0
    assert found["cores_busy"] > 0
    assert found["controller_waited_for_a_core"] >= 0


def test_a_quantile_lies_evenly_in_its_bucket():
    """As Prometheus reckons it, of what came since the last scrape."""
    text = '{0}_bucket{{le="1.0"}} {1}\n{0}_bucket{{le="2.0"}} {2}\n{0}_bucket{{le="+Inf"}} {2}\n'
    before, after = (Histogram.read(text.format("x", *counts), "x") for counts in ((5, 5), (5, 15)))
    assert after.since(before).quantile(0.5) == pytest.approx(1.5)


def test_the_webhook_s_figures_are_those_with_fewest_jobs():
    """Which the results file has at its top, also when sizes were measured one after another."""
    place = BENCHMARKS / "controller.py"
    spec = importlib.util.spec_from_file_location("controller_benchmark", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sizes = {
        size: dict.fromkeys(module.run.WEBHOOK_KEYS, value)
        for size, value in (("5000", 9.0), ("1000", 7.0))
    }
    report = module._with_webhook({**sizes, "100": {"missed": 0}})
    assert report["webhook_p99_ms"] == 7.0
    assert report["5000"]["webhook_p99_ms"] == 9.0
