# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The order of a measurement: start, create, settle, measure, restart; then more jobs."""

from __future__ import annotations

import json
import math
import pathlib
import sys
import time
from typing import Any

import urllib3
from testcluster.waiting import until

from benchmarks.controller_bench import creation, network_namespace, operator_process
from benchmarks.controller_bench.control_plane import Plane
from benchmarks.controller_bench.controller_process import Subject, requests_in
from benchmarks.controller_bench.cpu_accounting import Taken
from benchmarks.controller_bench.creation import Creator

PROFITING = 5
"""Of a hundred jobs, how many are worth more pods: their decisions end in a change."""
WEBHOOK_KEYS = ("webhook_p99_ms", "webhook_p50_ms", "creation_p99_ms", "creations_refused")
_COORDINATORS = f"http://{network_namespace.HOST}:7411/bench"
_WEBHOOK_CALLS = 1000
_SETTING_UP = 200.0
"""Creations a second that are tried while nothing is measured."""
_LONGEST = 3600.0
_ADDRESSES = "jsonpath={range .items[*]}{.status.podIP}{' '}{end}"


def run(
    plane: Plane, *, sizes: list[int], window: float, windows: float, rate: float, brief: bool
) -> dict[str, Any]:
    """Measure each size in turn; returns what controller.json holds.

    Args:
        plane: not started yet.
        sizes: numbers of jobs, ascending.
        window: seconds of a throughput window.
        windows: how many of them are measured.
        rate: creations a second while the webhook is measured.
        brief: measure the steady state alone, neither the webhook nor a restart.
    """
    began = time.monotonic()
    plane.start(pods=3 * max(sizes))
    operator_process.start(plane)
    plane.kubectl("create", "namespace", creation.NAMESPACE)
    script = str(pathlib.Path(__file__).with_name("coordinators.py"))
    words = [sys.executable, script, str(window), str(PROFITING)]
    plane.registry.start("coordinators", words)
    subject, creator = Subject(plane), Creator(plane.root, window)
    subject.install()
    subject.start()
    _say(began, "the control plane and the controller run")
    report: dict[str, Any] = {}
    there = 0
    for size in sizes:
        before = Taken.now(plane.registry)
        creator.create(there, size - there, rate=_SETTING_UP)
        there = size
        _say(began, f"{size} jobs are created")
        _wait_until_heard(size, "jobs to be heard by the controller")
        spent = Taken.now(plane.registry).spent(before)
        told = ", ".join(f"{name} {seconds:.1f}" for name, seconds in sorted(spent.items()))
        _say(began, f"the controller has heard all {size}; seconds of processors: {told}")
        time.sleep(window)
        found = _steady(plane, subject, size, window * windows)
        _say(began, json.dumps(found))
        if not brief:
            found |= _webhook(creator, rate)
            found["restart_to_steady_s"] = _restart(subject, size)
        report[str(size)] = found
        _say(began, f"{size} jobs: {json.dumps(found)}")
    return report


def _say(began: float, what: str) -> None:
    print(f"{time.monotonic() - began:6.0f} s: {what}", flush=True)


def _steady(plane: Plane, subject: Subject, size: int, seconds: float) -> dict[str, Any]:
    """Watch the controller while nothing is created."""
    _tell("reset")
    before, began, wall = subject.usage(), time.monotonic(), time.time()
    complaints = len(subject.complaints())
    decided, peak = subject.decisions(), before.rss
    taken = Taken.now(plane.registry)
    while time.monotonic() - began < seconds:
        time.sleep(1)
        peak = max(peak, subject.usage().rss)
    after, passed = subject.usage(), time.monotonic() - began
    shares = Taken.now(plane.registry).since(taken)
    heard, decided = _told(), subject.decisions().since(decided)
    asked = requests_in(plane.audit_log, wall, wall + passed)
    delays, scaled = heard["handed_out_after"], heard["scaled_after"]
    said = subject.complaints()[complaints:]
    there = _coordinators(plane)
    late = {name: job for name, job in heard["late"].items() if name in there}
    unasked = there.difference(heard["asked_at"])
    for line in (*map(str, late.items()), *map("{} was not asked".format, unasked), *said):
        print(f"         {line}"[:500], flush=True)
    return {
        "decision_p50_s": round(decided.quantile(0.5), 3),
        "decision_p99_s": round(decided.quantile(0.99), 3),
        "decisions": decided.total,
        "windows_heard": len(delays),
        "heard_p50_s": _quantile(delays, 0.5),
        "heard_p99_s": _quantile(delays, 0.99),
        "heard_longest_s": _quantile(delays, 1.0),
        "scaled": len(scaled),
        "scaled_p99_s": _quantile(scaled, 0.99),
        "api_requests_per_second": round(sum(asked.values()) / passed, 2),
        "api_requests": asked,
        "scrapes_per_second": round(heard["requests"].get("status", 0) / passed, 2),
        "rss_mib": round(peak / 2**20, 1),
        "rss_at_worst_mib": round(after.peak / 2**20, 1),
        "cpu_cores": round((after.cpu_seconds - before.cpu_seconds) / passed, 3),
        "missed": heard["windows_missed"] + sum(job["missed"] for job in late.values()),
        "unasked": size - len(there) + len(unasked),
        "late": len(late),
        "replaced": len(heard["late"]) - len(late),
        "complaints": len(said),
        "seconds": round(passed, 1),
        **shares,
    }


def _coordinators(plane: Plane) -> set[str]:
    """Addresses of all first pods. One that was made anew has another; nobody asks at the old."""
    chosen = "training.kubeflow.org/replica-index=0"
    found = plane.kubectl("get", "pods", "-A", "-l", chosen, "-o", _ADDRESSES, timeout=300)
    return set(found.split())


def _webhook(creator: Creator, rate: float) -> dict[str, Any]:
    before = creator.waits()
    taken = creator.create(90000, _WEBHOOK_CALLS, rate=rate, dry=True)
    waits = creator.waits().since(before)
    refused = taken.count(math.inf)
    taken = [seconds for seconds in taken if seconds < math.inf]
    return {
        "webhook_p99_ms": round(waits.quantile(0.99) * 1000, 1),
        "webhook_p50_ms": round(waits.quantile(0.5) * 1000, 1),
        "creation_p99_ms": round(_quantile(sorted(taken), 0.99) * 1000, 1),
        "creations_refused": refused,
    }


def _restart(subject: Subject, size: int) -> float:
    """Seconds from the start of a new process until it has asked every job."""
    subject.kill()
    _tell("reset")
    began = time.monotonic()
    subject.start()
    _wait_until_heard(size, "a restarted controller to hear all jobs")
    return round(time.monotonic() - began, 1)


def _wait_until_heard(size: int, what: str) -> None:
    if not until(lambda: _told()["asked"] >= size, seconds=_LONGEST, every=0.5):
        raise TimeoutError(f"waited {_LONGEST:.0f} s for {what}: {_told()['asked']} of {size}")


def _told() -> dict[str, Any]:
    found: dict[str, Any] = urllib3.request("GET", f"{_COORDINATORS}/report", timeout=60).json()
    return found


def _tell(what: str) -> None:
    urllib3.request("POST", f"{_COORDINATORS}/{what}", timeout=60)


def _quantile(ordered: list[float], share: float) -> float:
    """Of values in ascending order; 0 without any."""
    return round(ordered[min(int(share * len(ordered)), len(ordered) - 1)], 3) if ordered else 0.0
