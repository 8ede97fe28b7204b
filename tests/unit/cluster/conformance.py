# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What every place where jobs run must do, whichever it is.

A test module makes a subclass and gives three fixtures: ``place`` (a protocol.Cluster),
``namespace`` (of its own for each test) and ``manifest``: a function (name, script, workers=1)
that gives a labelled worker-only PyTorchJob whose container ``pytorch`` runs the script by ``sh``.
"""

from __future__ import annotations

import pytest

from rover_kf import errors
from rover_kf.api.jobs import Event, JobKey
from tests.support.waiting import eventually

WAIT = 120.0
"""Seconds: a loaded cluster may need long to start a pod."""

FOREVER = "trap 'exit 143' TERM; echo ready; while :; do sleep 0.1; done"


class ClusterConformance:
    """The suite."""

    def test_a_created_job_can_be_read(self, place, namespace, manifest):
        """create_job answers with the job's identity, and get_job and list_jobs give it again."""
        made = place.create_job(manifest("read", "exit 0"))
        assert made.key == JobKey(namespace, "read")
        assert made.uid
        assert made.resource_version
        assert made.replicas == {"worker": 1}
        assert made.nodes == 1
        read = place.get_job(made.key)
        assert read.uid == made.uid
        assert made.key in {job.key for job in place.list_jobs(namespace)}
        assert made.key in {job.key for job in place.list_jobs()}
        assert not place.list_jobs(f"{namespace}-other")

    def test_a_name_is_never_used_twice(self, place, manifest):
        """A second job of the same name is refused with JobExists, also when the first is over."""
        made = place.create_job(manifest("twice", "exit 0"))
        eventually(lambda: place.get_job(made.key).finished, within=WAIT)
        with pytest.raises(errors.JobExists, match="twice"):
            place.create_job(manifest("twice", "exit 0"))
        assert place.get_job(made.key).uid == made.uid

    def test_what_is_not_there_is_not_found(self, place, namespace):
        """Reading and patching a job that is not there raise NoSuchJob; deleting it is fine."""
        key = JobKey(namespace, "nobody")
        with pytest.raises(errors.NoSuchJob, match="nobody"):
            place.get_job(key)
        with pytest.raises(errors.NoSuchJob, match="nobody"):
            place.patch_job(key, {"metadata": {"labels": {"a": "b"}}})
        place.delete_job(key)
        assert place.list_pods(key) == ()
        assert place.list_events(key) == ()

    def test_a_bad_manifest_is_refused(self, place, namespace, manifest):
        """A job without a container named pytorch is refused as bad input; nothing is created."""
        bad = manifest("bad", "exit 0")
        pod = bad["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
        pod["containers"][0]["name"] = "other"
        with pytest.raises(errors.InputError, match="pytorch"):
            place.create_job(bad)
        with pytest.raises(errors.NoSuchJob):
            place.get_job(JobKey(namespace, "bad"))

    def test_a_job_runs_to_its_end(self, place, manifest):
        """A job whose workers end with 0 succeeds, and its log and pods can be read."""
        made = place.create_job(manifest("whole", "echo worker says $RANK hello", workers=2))
        job = eventually(lambda: (found := place.get_job(made.key)).finished and found, within=WAIT)
        assert job.phase == "Succeeded"
        assert job.finished_at is not None
        assert job.finished_at >= job.created_at > 0
        # The first worker's end is the job's; the second one may be at it still.
        pods = eventually(lambda: self._all_succeeded(place, made.key), within=WAIT)
        assert [pod.name for pod in pods] == ["whole-worker-0", "whole-worker-1"]
        assert [pod.replica_index for pod in pods] == [0, 1]
        log = eventually(lambda: place.read_log(made.key, "whole-worker-1", "pytorch"))
        assert "hello" in log
        container = next(c for c in pods[0].containers if c.name == "pytorch")
        assert container.exit_code == 0

    def test_a_failing_job_fails(self, place, manifest):
        """Under restartPolicy Never a worker that ends with 3 fails the job; the code is kept."""
        failing = manifest("failing", "exit 3")
        failing["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] = "Never"
        made = place.create_job(failing)
        job = eventually(lambda: (found := place.get_job(made.key)).finished and found, within=WAIT)
        assert job.phase == "Failed"
        (pod,) = place.list_pods(made.key)
        assert next(c.exit_code for c in pod.containers if c.name == "pytorch") == 3

    def test_replicas_follow_a_patch(self, place, manifest):
        """Patching replicas makes and removes pods at the top; the others are not touched."""
        made = place.create_job(manifest("scaled", FOREVER, workers=1))
        before = eventually(lambda: self._running(place, made.key, 1), within=WAIT)
        for wanted in (3, 2):
            patch = {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": wanted}}}}
            assert place.patch_job(made.key, patch).replicas == {"worker": wanted}
            after = eventually(lambda n=wanted: self._running(place, made.key, n), within=WAIT)
            assert after[0].uid == before[0].uid
            assert [pod.replica_index for pod in after] == list(range(wanted))
        assert len({pod.address for pod in after}) == 2
        place.delete_job(made.key)

    def test_a_patch_merges(self, place, manifest):
        """A merge patch adds, replaces and (with null) removes; what it does not name stays."""
        made = place.create_job(manifest("merged", FOREVER))
        patch = {"metadata": {"annotations": {"a": "1", "b": "2"}}}
        assert place.patch_job(made.key, patch).annotations["b"] == "2"
        job = place.patch_job(made.key, {"metadata": {"annotations": {"a": None, "b": "3"}}})
        assert "a" not in job.annotations
        assert job.annotations["b"] == "3"
        assert job.labels == made.labels
        assert job.resource_version != made.resource_version
        place.delete_job(made.key)

    def test_a_stale_patch_conflicts(self, place, manifest):
        """A patch with an old resource_version raises Conflict and changes nothing."""
        made = place.create_job(manifest("stale", FOREVER))
        newer = place.patch_job(made.key, {"metadata": {"annotations": {"a": "1"}}})
        with pytest.raises(errors.Conflict):
            place.patch_job(
                made.key,
                {"metadata": {"annotations": {"a": "2"}}},
                resource_version=made.resource_version,
            )
        assert newer.resource_version != made.resource_version
        assert place.get_job(made.key).annotations["a"] == "1"
        place.delete_job(made.key)

    def test_a_deleted_pod_is_replaced(self, place, manifest):
        """A deleted pod gets its SIGTERM and another pod takes its name."""
        made = place.create_job(manifest("replaced", FOREVER))
        (before,) = eventually(lambda: self._running(place, made.key, 1), within=WAIT)
        place.delete_pod(made.key, before.name)

        def replaced():
            pods = self._running(place, made.key, 1)
            return pods if pods and pods[0].uid != before.uid else None

        (after,) = eventually(replaced, within=WAIT)
        assert after.name == before.name
        assert not place.get_job(made.key).finished
        place.delete_job(made.key)

    def test_a_deleted_job_is_gone_with_its_pods(self, place, manifest):
        """After delete_job the job, then its pods disappear; its name is free again."""
        made = place.create_job(manifest("gone", FOREVER, workers=2))
        eventually(lambda: self._running(place, made.key, 2), within=WAIT)
        place.delete_job(made.key)
        eventually(lambda: not self._exists(place, made.key), within=WAIT)
        eventually(lambda: not place.list_pods(made.key), within=WAIT)
        again = place.create_job(manifest("gone", "exit 0"))
        assert again.uid != made.uid

    def test_suspension_removes_pods_and_resumption_brings_them_back(self, place, manifest):
        """A suspended job has no pods; resumed, it runs anew."""
        made = place.create_job(manifest("paused", FOREVER))
        eventually(lambda: self._running(place, made.key, 1), within=WAIT)
        job = place.patch_job(made.key, {"spec": {"runPolicy": {"suspend": True}}})
        assert job.suspended
        eventually(lambda: not place.list_pods(made.key), within=WAIT)
        eventually(lambda: place.get_job(made.key).phase == "Suspended", within=WAIT)
        place.patch_job(made.key, {"spec": {"runPolicy": {"suspend": False}}})
        eventually(lambda: self._running(place, made.key, 1), within=WAIT)
        eventually(lambda: place.get_job(made.key).phase == "Running", within=WAIT)
        place.delete_job(made.key)

    def test_events_are_told_in_order(self, place, manifest):
        """Events come back oldest first with reason, message, kind and source."""
        made = place.create_job(manifest("story", FOREVER))
        for number in range(3):
            place.emit(
                made.key,
                Event(f"Told{number}", f"number {number}", warning=number == 1, source="tester"),
            )
        told = eventually(
            lambda: (
                len(found := [e for e in place.list_events(made.key) if e.source == "tester"]) == 3
                and found
            ),
            within=WAIT,
        )
        assert [event.reason for event in told] == ["Told0", "Told1", "Told2"]
        assert [event.message for event in told] == ["number 0", "number 1", "number 2"]
        assert [event.warning for event in told] == [False, True, False]
        assert all(event.at > 0 for event in told)
        place.delete_job(made.key)

    def test_an_event_of_a_job_that_is_gone_is_no_error(self, place, namespace):
        """emit never fails because the job has been deleted meanwhile."""
        key = JobKey(namespace, "vanished")
        place.emit(key, Event("Told", "too late"))
        assert place.list_events(key) == ()

    def test_no_coordinator_is_said(self, place, manifest):
        """Without a coordinator a call raises ClusterUnavailable, which may be retried."""
        made = place.create_job(manifest("mute", FOREVER))
        with pytest.raises(errors.ClusterUnavailable):
            place.call_coordinator(made.key, "GET", "/v1/status")
        place.delete_job(made.key)

    def test_the_tail_of_a_log_can_be_read(self, place, manifest):
        """read_log gives the last lines asked for."""
        script = "for i in 1 2 3 4 5; do echo line $i; done; " + FOREVER
        made = place.create_job(manifest("tailed", script))

        def tail():
            if not self._running(place, made.key, 1):
                return None
            text = place.read_log(made.key, "tailed-worker-0", "pytorch", tail=2)
            return text if "ready" in text else None

        assert eventually(tail, within=WAIT).splitlines() == ["line 5", "ready"]
        place.delete_job(made.key)

    @staticmethod
    def _running(place, key, count):
        """The pods, once exactly ``count`` are there and all run."""
        pods = [pod for pod in place.list_pods(key) if not pod.deleting]
        ready = len(pods) == count and all(pod.phase == "Running" for pod in pods)
        return pods if ready and len(place.list_pods(key)) == count else None

    @staticmethod
    def _all_succeeded(place, key):
        """The pods, once all that are there have ended well."""
        pods = place.list_pods(key)
        return {pod.phase for pod in pods} == {"Succeeded"} and pods

    @staticmethod
    def _exists(place, key):
        try:
            place.get_job(key)
        except errors.NoSuchJob:
            return False
        return True
