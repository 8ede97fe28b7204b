# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a process says that it is at."""

from __future__ import annotations

import torch

from rover_kf.api.faults import hang_reports
from rover_kf.trainer.phase import Phase


class Wrapper(torch.nn.Module):
    """As DistributedDataParallel holds its module."""

    def __init__(self, module):
        super().__init__()
        self.module = module


def test_a_training():
    """Nothing before restore; then start, training, evaluation and checkpoint as they come."""
    inner = torch.nn.Linear(2, 2)
    state = {"model": Wrapper(inner), "seen": 1}
    phase = Phase()
    assert phase.current() == ""
    phase.begin()
    assert phase.current() == hang_reports.START
    phase.record_step(state, last=False)
    assert phase.current() == hang_reports.TRAINING
    inner.eval()
    assert phase.current() == hang_reports.EVALUATION
    with phase.saving(), phase.saving():
        assert phase.current() == hang_reports.CHECKPOINT
    inner.train()
    state["model"].eval()
    assert phase.current() == hang_reports.EVALUATION
    state.clear()
    del inner
    assert phase.current() == hang_reports.TRAINING, "nothing is kept alive for it"
    phase.record_step(state, last=True)
    assert phase.current() == hang_reports.ENDED


class Quiet:
    """A stream."""

    def __init__(self):
        self.waiting = True

    def is_waiting(self):
        return self.waiting


def test_a_stream_that_brings_nothing():
    """Told from the restore on, before the first step, too; over as soon as something comes."""
    quiet, phase = Quiet(), Phase()
    phase.begin()
    phase.watch_state({"data": quiet, "seen": 1})
    assert phase.current() == hang_reports.WAITING
    quiet.waiting = False
    assert phase.current() == hang_reports.START
    phase.record_step({}, last=False)
    quiet.waiting = True
    assert phase.current() == hang_reports.WAITING
    phase.end()
    assert phase.current() == hang_reports.ENDED


def test_a_script_that_only_saves():
    """It restores and saves and never tells of a step: nothing is known of it."""
    phase = Phase()
    phase.begin()
    with phase.saving():
        assert phase.current() == ""
    assert phase.current() == ""
    phase.end()
    assert phase.current() == hang_reports.ENDED
