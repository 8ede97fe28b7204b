# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the coordinator does grows with its members, not with their square; counted, not timed."""

from __future__ import annotations

import contextlib
import sys

import pytest

from benchmarks.rendezvous_bench.simulated_launchers import Crowd

FEW, MANY = 40, 320


class Operations:
    """Counts the interpreter's operations while it is open."""

    def __init__(self) -> None:
        self.count = 0

    @contextlib.contextmanager
    def open(self):
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)

    def _trace(self, frame, event, _argument):
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.count += event == "opcode"
        return self._trace


@pytest.fixture(scope="module")
def counts():
    def measure(size):
        meter, found = Operations(), {}
        job = Crowd(size, meter)
        for name, act in (
            ("form", job.form),
            ("watch", lambda: job.watch(3.0)),
            ("lose a process", job.lose_process),
        ):
            before = meter.count
            act()
            found[name] = meter.count - before
        return found

    return {size: measure(size) for size in (FEW, MANY)}


@pytest.mark.parametrize("name", ["form", "watch", "lose a process"])
def test_work_grows_with_the_members(counts, name):
    """Eight times the members are at most nine times the work."""
    few, many = counts[FEW][name], counts[MANY][name]
    print(f"{name}: {few} operations for {FEW} pods, {many} for {MANY}: {many / few:.1f} times")
    assert few > 100 * FEW
    assert many <= few * (MANY / FEW) * 1.125
