# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The soak reads every rank's steps from logs that grow while it reads."""

from __future__ import annotations

import pytest
from soaking.trace import Trace


def _line(step: int, rank: int, number: int, at: float, what: str = "stepped") -> str:
    return f"soak {what} {step} {rank} 2 {number} 4711 {at} memory\n"


@pytest.fixture
def log(tmp_path):
    folder = tmp_path / "digits-worker-0.1234"
    folder.mkdir()
    return folder / "pytorch.log"


def test_half_a_line_waits_for_its_rest(tmp_path, log):
    """A line counts once it is whole, and once only; other output is passed over."""
    trace = Trace(tmp_path)
    assert trace.read() is None
    text = "rank 0 of 2 starts\n" + _line(1, 0, 1, 10.0)
    log.write_text(text[:-5])
    assert trace.read() is None
    log.write_text(text)
    assert trace.read().step == 1
    assert trace.read().newest[0].at == 10.0


def test_all_ranks_step_after_the_mark(tmp_path, log):
    """A round steps again when each rank has finished a step after the mark."""
    trace = Trace(tmp_path)
    log.write_text(_line(1, 0, 1, 10.0) + _line(1, 1, 1, 10.0))
    assert trace.read().stepping
    trace.mark(10.5)
    assert not trace.read().stepping
    log.write_text(log.read_text() + _line(2, 1, 1, 10.4) + _line(3, 0, 1, 10.6))
    assert not trace.read().stepping
    log.write_text(log.read_text() + _line(3, 1, 1, 10.7))
    assert {rank: line.at for rank, line in trace.read().marked.items()} == {0: 10.6, 1: 10.7}


def test_only_new_steps_are_productive(tmp_path, log):
    """Steps done again, a round's first step and a step that was held up do not count."""
    trace = Trace(tmp_path)
    first = [_line(step, 0, 1, step * 0.5) for step in range(1, 5)]  # 1.5 s of new steps
    again = [_line(step, 0, 2, 10 + step * 0.5) for step in range(3, 7)]  # 1 s of new ones
    stalled = [_line(7, 0, 2, 30.0), _line(8, 0, 2, 30.5)]  # 0.5 s
    log.write_text("".join([*first, _line(2, 0, 2, 11.0, "restored"), *again, *stalled]))
    current = trace.read()
    assert trace.productive_seconds == pytest.approx(3.0)
    assert (current.number, current.step, current.restored[0].step) == (2, 8, 2)
