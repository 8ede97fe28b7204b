# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a step tells of a job's size and of a run, without a cluster."""

from __future__ import annotations

from rover_kf.api import names
from rover_kf.api.jobs import Event
from rover_kf.client import Progress
from rover_kf.pipeline_steps import job_status
from rover_kf.pipeline_steps.job_status import StepLog
from rover_kf.pipeline_steps.scaling_watch import ScalingHistory
from rover_kf.reconcilers.status_annotation import JobStatus


def progress(**known):
    nothing = {"activity": "", "replicas": 2, "running": 2, "nodes": 2, "step": 0}
    nothing |= {"total_steps": None, "samples_per_second": 0.0, "sealed_step": None}
    nothing |= {"durable_step": None, "restarts": 0, "phase": "Running", "job": "digits"}
    return Progress(**{**nothing, **known})


def test_a_story_of_sizes_is_numbers_and_a_table():
    """Changes are counted by what came of them; texts cannot leave their cells."""
    events = (
        Event(names.EVENT_SCALE_DECISION, "2 -> 3 | <b>", at=100.0),
        Event(names.EVENT_SCALED, "Worker replicas 2 -> 3", at=110.0),
        Event(names.EVENT_SCALE_ROLLED_BACK, "no gain", warning=True, at=160.0),
    )
    story = ScalingHistory("digits", 2, 3, 2, events)
    assert story.metrics == {
        "replicas_fewest": 2.0,
        "replicas_most": 3.0,
        "replicas": 2.0,
        "changes": 1.0,
        "verified": 0.0,
        "rolled_back": 1.0,
    }
    assert "| 0 s | ScaleDecision | 2 -> 3 \\| &lt;b> |" in story.markdown
    assert "| 60 s | ScaleRolledBack | no gain |" in story.markdown


def test_a_log_tells_changes_at_once_and_numbers_now_and_then():
    """Each Event once; a line for each change of state, and one in 15 s where only numbers move."""
    lines, now = [], [0.0]
    told = StepLog(lines.append, clock=lambda: now[0])
    for step in range(5):
        told.log_progress(progress(step=step, activity="training"))
    now[0] += 20
    told.log_progress(progress(step=9, activity="training"))
    told.log_progress(progress(step=9, activity="draining"))
    event = Event("WorldFormed", "2 pods", at=3600.0)
    told.log_events((event, event))
    assert [line.partition("step ")[2][:1] for line in lines[:3]] == ["0", "9", "9"]
    assert lines[3:] == ["01:00:00   WorldFormed: 2 pods"]


def test_an_annotation_stands_in_for_a_silent_coordinator():
    """What the controller wrote is told; what a coordinator says itself, or nothing, stands."""
    memory = JobStatus(phase="training", nodes=2, step=70, samples_per_second=9.0, durable_step=60)
    seen = job_status.with_annotation(progress(), memory)
    assert (seen.activity, seen.step, seen.durable_step) == ("training", 70, 60)
    said = progress(activity="recovering", step=71)
    assert job_status.with_annotation(said, memory) is said
    assert job_status.with_annotation(progress(), JobStatus()) == progress()
