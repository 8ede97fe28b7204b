# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Progress is drawn in place on a terminal, and is lines in a log.

A notebook's cell is looked at in tests/notebooks, in a real kernel.
"""

from __future__ import annotations

import dataclasses
import io

from rich.console import Console

from rover_kf.api.jobs import Event, JobKey, ObservedJob
from rover_kf.client.job_progress import make_progress
from rover_kf.client.progress_display import ProgressDisplay, ProgressFrame
from rover_kf.client.progress_text import format_progress

JOB = ObservedJob(JobKey("team", "fit"), "uid", "1", {"metadata": {}}, {"worker": 2}, "Running")
START = make_progress(JOB, (), None)
TOLD = Event("Restored", "rank 0 resumes at step 20 from memory", at=1.0)


def _at(step, *events, phase="Running"):
    return dataclasses.replace(START, step=step, total_steps=40, events=events, phase=phase)


def test_a_log_gets_lines():
    """Every event, the first look, and the end; not each number between."""
    text = io.StringIO()
    with ProgressDisplay(Console(file=text, width=40)) as screen:
        screen.show(_at(1))
        screen.show(_at(2, TOLD))
        screen.show(_at(40, phase="Succeeded"))
    lines = text.getvalue().splitlines()
    assert [line.split(",")[2:3] for line in lines if line.startswith("fit")] == [
        [" step 1/40"],
        [" step 40/40"],
    ]
    assert [line for line in lines if "Restored: rank 0 resumes at step 20 from memory" in line]


def test_a_script_that_reports_nothing_does_not_look_hung():
    """Its line says so; of one that reports, steps and samples."""
    assert ", steps not reported yet," in format_progress(_at(0))
    assert ", steps not reported," in format_progress(_at(0, phase="Succeeded"))
    assert ", step 3/40, 0 samples/s," in format_progress(_at(3))


def test_a_terminal_is_drawn_in_place():
    """The line of the last look is there, and the cursor went back before it."""
    text = io.StringIO()
    with ProgressDisplay(Console(file=text, width=100, force_terminal=True)) as screen:
        screen.show(_at(1))
        screen.show(_at(39, TOLD))
    assert "step 39/40" in text.getvalue()
    assert "\x1b[" in text.getvalue()


def test_a_look_reads_as_text_too():
    """Where no HTML is shown there is the line and its events."""
    shown = str(ProgressFrame(_at(3), (TOLD,)))
    assert shown.splitlines()[0].startswith("fit: Running")
    assert "resumes at step 20" in shown.splitlines()[1]
