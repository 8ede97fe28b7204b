# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""RoverClient on the embedded cluster, with jobs that are plain shell scripts."""

from __future__ import annotations

import dataclasses

import pytest
from local_jobs import FOREVER, job, replica

from rover_kf import errors
from rover_kf.api import names
from rover_kf.client import RoverClient, settings
from tests.support.waiting import eventually

ELASTIC = {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 3}}


@pytest.fixture
def rover(tmp_path):
    told = settings.read({}, state=tmp_path / "state")
    with RoverClient(config=dataclasses.replace(told)) as client:
        yield client


def test_a_job_is_submitted_waited_for_and_read(rover):
    """Submit, wait, logs, events and delete, over one name."""
    made = rover.submit(job("plain", worker=replica("echo hello")), inject=False)
    assert rover.wait("plain", timeout=60).phase == "Succeeded"
    assert rover.logs("plain") == "hello\n"
    assert "SuccessfulCreatePod" in {event.reason for event in rover.events("plain")}
    assert made.key in {found.key for found in rover.list()}
    rover.delete("plain")
    eventually(lambda: not rover.list())
    with pytest.raises(errors.NoSuchJob):
        rover.get("plain")


def test_waiting_tells_how_it_ended(rover):
    """A job that fails raises JobFailed with the verdict; one that goes on, WaitTimeout."""
    rover.submit(job("broken", worker=replica("exit 3", policy="Never")), inject=False)
    with pytest.raises(errors.JobFailed, match=r"broken is Failed: .*exit code 3"):
        rover.wait("broken", timeout=60)
    rover.submit(job("long", worker=replica(FOREVER)), inject=False)
    assert rover.wait("long", until="Running", timeout=60).phase == "Running"
    with pytest.raises(errors.WaitTimeout, match="long is Running, not Succeeded"):
        rover.wait("long", timeout=0.0)


def test_watching_ends_with_the_job(rover):
    """Progress comes until the end; events come once each."""
    rover.submit(job("seen", worker=replica("sleep 0.3")), inject=False)
    seen = list(rover.watch("seen", every=0.05))
    assert seen[-1].phase == "Succeeded"
    assert seen[0].replicas == 1
    told = [event.reason for progress in seen for event in progress.events]
    assert told.count("SuccessfulCreatePod") == 1
    assert told.count("PyTorchJobSucceeded") == 1


def test_scaling_keeps_to_the_jobs_bounds(rover):
    """Replicas are patched inside the bounds; outside they are refused with the bounds, and so is
    what is no whole number.
    """
    rover.submit(job("sized", worker=replica(FOREVER), **ELASTIC), inject=False)
    assert rover.scale("sized", 3).replicas == {"worker": 3}
    eventually(lambda: len(rover.cluster.list_pods(rover.get("sized").key)) == 3)
    for wrong in (True, "2", 2.0):
        with pytest.raises(errors.InputError, match=f"{wrong!r} worker replicas; allowed: a whole"):
            rover.scale("sized", wrong)
    with pytest.raises(errors.InputError, match="4 worker replicas; allowed: 1 to 3"):
        rover.scale("sized", 4)


def test_patching_is_pure_and_idempotent(rover):
    """A patched job is a rover-kf job; patching it again changes nothing; nothing is created."""
    plain = job("pure", worker=replica(FOREVER), **ELASTIC)
    once = rover.patch(plain)
    assert names.INJECTED_ANNOTATION in once.manifest["metadata"]["annotations"]
    assert rover.patch(once.manifest).manifest == once.manifest
    assert rover.list() == ()


def test_a_warning_of_injection_becomes_an_event(rover):
    """What injection has to say about a job is told on the job."""
    rover.submit(job("shell", worker=replica("exit 0"), **ELASTIC))
    rover.wait("shell", timeout=120)
    told = {event.reason: event for event in rover.events("shell")}
    assert told[names.EVENT_NOT_REWRITTEN].warning


def test_a_checkpoint_path_that_cannot_be_written_is_refused(rover):
    """A path on no volume must be one of this machine that can be written."""
    manifest = job("path", worker=replica(FOREVER), **ELASTIC)
    manifest["metadata"]["annotations"] = {"rover-kf.io/checkpoint.path": "/proc/nowhere"}
    with pytest.raises(errors.PolicyError, match=r"checkpoint.path is '/proc/nowhere'"):
        rover.submit(manifest)
    manifest["metadata"]["annotations"] = {"rover-kf.io/checkpoint.path": "s3://bucket/x"}
    with pytest.raises(errors.PolicyError, match="embedded run has no Secret"):
        rover.submit(manifest)
    assert rover.list() == ()


def test_a_silent_coordinator_is_no_failure_of_progress(rover):
    """Progress without a coordinator has the operator's part; status says who is missing."""
    rover.submit(job("mute", worker=replica(FOREVER)), inject=False)
    rover.wait("mute", until="Running", timeout=60)
    progress = rover.progress("mute")
    assert (progress.phase, progress.replicas, progress.activity) == ("Running", 1, "")
    with pytest.raises(errors.ClusterUnavailable, match="mute"):
        rover.status("mute")


def test_a_report_needs_a_run(rover, tmp_path):
    """A report of a job that the history does not know is refused."""
    with pytest.raises(errors.NoSuchJob, match="no run of PyTorchJob default/nobody"):
        rover.report("nobody", tmp_path / "r.html")


def test_places_are_chosen_by_name(tmp_path):
    """RoverClient.at gives an embedded client in the folder named, and refuses other places."""
    with RoverClient.connect("embedded", state=str(tmp_path)) as client:
        assert client.settings.state == tmp_path
        assert client.list() == ()
    with pytest.raises(errors.InputError, match="place is 'moon'"):
        RoverClient.connect("moon")


def test_a_job_is_paused_until_it_is_resumed(rover):
    """Its pods end, and come back; what is in memory alone is not given up without a word."""
    rover.submit(job("paused", worker=replica(FOREVER)), inject=False)
    rover.wait("paused", until="Running", timeout=60)
    with pytest.raises(errors.InputError, match="in its pods' memory alone"):
        rover.pause("paused")
    assert rover.pause("paused", force=True, wait=60).pods == 0
    assert rover.wait("paused", until="Suspended", timeout=60).suspended
    assert rover.explain("paused").unmanaged_reason
    rover.resume("paused")
    assert rover.wait("paused", until="Running", timeout=60).phase == "Running"
