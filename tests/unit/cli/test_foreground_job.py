# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""RoverClient.follow on the embedded cluster: what is shown, what comes back, how it ends."""

from __future__ import annotations

import dataclasses

import pytest
from local_jobs import FOREVER, job, replica

from rover_kf import errors
from rover_kf.api.jobs import Event
from rover_kf.client import RoverClient, settings
from rover_kf.client.manifests import to_key
from tests.support.waiting import eventually

VERBS = (
    *("train", "submit", "get", "list", "wait", "logs", "events", "scale", "pause", "resume"),
    *("recommend", "patch", "explain", "report", "delete", "follow", "watch", "progress"),
)


@pytest.fixture
def rover(tmp_path):
    with RoverClient(config=settings.read({}, state=tmp_path / "state")) as client:
        yield client


def test_a_job_is_followed_to_its_end(rover, capsys):
    """Its events and its end are printed; the course has every look, in time."""
    rover.submit(job("seen", worker=replica("sleep 0.3")), inject=False)
    course = rover.follow("seen", every=0.05)
    printed = capsys.readouterr().out
    assert "PyTorchJobSucceeded" in printed
    assert printed.splitlines()[-1].startswith("seen: Succeeded")
    assert course.last.phase == "Succeeded"
    assert [look.timestamp for look in course] == sorted(look.timestamp for look in course)
    assert course[0].timestamp > 0
    assert "PyTorchJobSucceeded" in {event.reason for event in course.events}


def test_following_tells_of_a_failure(rover, capsys):
    """A job that fails raises as wait does, after what happened was shown."""
    rover.submit(job("broken", worker=replica("exit 3", policy="Never")), inject=False)
    with pytest.raises(errors.JobFailed, match=r"broken is Failed: .*exit code 3"):
        rover.follow("broken", every=0.05)
    assert "broken: Failed" in capsys.readouterr().out


def test_following_may_be_given_up(rover):
    """After so many seconds it ends with an error that says so; the job goes on."""
    rover.submit(job("long", worker=replica(FOREVER)), inject=False)
    with pytest.raises(errors.WaitTimeout, match="has not ended in 0 s; it goes on"):
        rover.follow("long", every=0.05, timeout=0.0)
    assert not rover.cluster.get_job(to_key("long")).finished


def test_every_verb_is_there():
    """The verbs of the SDK, each with what it is for in its docstring."""
    for verb in VERBS:
        assert (getattr(RoverClient, verb).__doc__ or "").strip()


def test_what_was_deleted_is_told_from_the_history(rover):
    """Once its record is settled it says ``deleted``, and its events are still to be had."""
    key = rover.submit(job("gone", worker=replica(FOREVER)), inject=False).key
    rover.look_after(key)
    rover.wait(key, "Running", timeout=60)
    eventually(lambda: rover.record(key) is not None)
    rover.delete(key)
    eventually(lambda: not rover.list())
    rover.settle(key)
    found = rover.record(key)
    assert found.outcome == "deleted"
    story = (Event("WorldFormed", "round 1", at=1.0),)
    rover.history.upsert(dataclasses.replace(found, events=story))
    assert tuple(rover.events(key)) == story
    with pytest.raises(errors.NoSuchJob, match="rover-kf history list what was"):
        rover.get(key)
    with pytest.raises(errors.NoSuchJob):
        rover.events("never")


def test_the_progress_of_a_job_that_ended_is_what_the_history_keeps(rover):
    """Its coordinator is gone; steps, restarts and verdict are those of its record."""
    key = rover.submit(job("over", worker=replica("exit 0")), inject=False).key
    rover.look_after(key)
    rover.wait(key, timeout=60)
    rover.settle(key)  # from then on nobody else writes its record
    told = dataclasses.replace(rover.record(key), steps=7, total_steps=7, restarts=2)
    rover.history.upsert(told)
    last = rover.progress(key)
    assert (last.phase, last.step, last.total_steps, last.restarts) == ("Succeeded", 7, 7, 2)
    rover.history.upsert(dataclasses.replace(told, uid="another run of that name"))
    rover.history.delete(told.uid)
    assert rover.progress(key).step == 0
