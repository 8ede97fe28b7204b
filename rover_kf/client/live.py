# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs that run: looked at, waited for, scaled, deleted."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import Event, JobKey, ObservedJob
from rover_kf.api.records import RunRecord
from rover_kf.api.status import CoordinatorStatus, ScaleRequest
from rover_kf.client import change, explaining, pausing
from rover_kf.client.abode import key_of
from rover_kf.client.explaining import Explanation
from rover_kf.client.listings import Course, Events, Jobs, Log
from rover_kf.client.pausing import Paused
from rover_kf.client.progress import Progress, carried, ended, progress_of
from rover_kf.client.runs import Runs
from rover_kf.client.screen import Screen
from rover_kf.cluster import coordinator_status
from rover_kf.injection.adapters import adapter_for

POLL_SECONDS = 0.2


class LiveJobs(Runs):
    """What a client does with jobs that are there."""

    def get(self, key: JobKey | str) -> ObservedJob:
        """Read one job.

        Args:
            key: of the job; as everywhere ``NAME`` is a PyTorchJob, and ``tfjob/NAME`` a TFJob, in
                the namespace ``default``.
        """
        return self.cluster.get_job(key_of(key))

    def list(self, namespace: str | None = None) -> Jobs:
        """Labelled jobs of a namespace, or of all."""
        return Jobs(self.cluster.list_jobs(namespace))

    def wait(
        self, key: JobKey | str, until: str = "Succeeded", timeout: float | None = None
    ) -> ObservedJob:
        """Wait until the job's phase is ``until``.

        Raises:
            JobFailed: it ended otherwise; the message holds the verdict.
            StillRunning: it did not get there in ``timeout`` seconds; it goes on.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            job = self.get(key)
            if job.phase == until:
                self.settle(job.key)
                return job
            if job.finished:
                self.settle(job.key)
                raise errors.JobFailed(f"{job.key} is {job.phase}: {self.verdict(job.key)}")
            if deadline is not None and time.monotonic() > deadline:
                raise errors.StillRunning(
                    f"{job.key} is {job.phase or 'new'}, not {until}, after {timeout} s; it goes on"
                )
            time.sleep(POLL_SECONDS)

    def status(self, key: JobKey | str, *, after: int = 0) -> CoordinatorStatus:
        """What the job's coordinator knows; events with a sequence above ``after``.

        Raises:
            ClusterUnavailable: it does not answer (not started yet, ended, being replaced).
        """
        return coordinator_status.ask(self.cluster, key_of(key), after=after)

    def progress(self, key: JobKey | str) -> Progress:
        """Where the job stands; never fails because the coordinator is silent.

        Of a job that has ended the history tells how far it came.
        """
        try:
            status = self.status(key, after=names.NO_EVENTS)
        except errors.ClusterUnavailable:
            status = None
        job = self.get(key)
        found = progress_of(job, self.cluster.list_pods(job.key), status)
        if status is None and found.finished:
            found = ended(found, self._last(job))
        return dataclasses.replace(found, at=time.time())

    def _last(self, job: ObservedJob) -> RunRecord | None:
        """What the history keeps of this very job; None if it cannot be asked, too."""
        try:
            record = self.record(job.key)
        except errors.HistoryUnavailable:
            return None
        return record if record is not None and record.uid == job.uid else None

    def watch(self, key: JobKey | str, *, every: float = 0.5) -> Iterator[Progress]:
        """Progress every so many seconds, with what was told meanwhile, until the job's end."""
        seen: set[Event] = set()
        last: Progress | None = None
        while True:
            progress = self.progress(key)
            if progress.finished:
                self.settle(progress.key)
            fresh = tuple(event for event in self.events(key) if event not in seen)
            seen.update(fresh)
            # The coordinator goes before the job does: what it said last still stands.
            last = dataclasses.replace(carried(progress, last), events=fresh)
            yield last
            if last.finished:
                return
            time.sleep(every)

    def follow(
        self, key: JobKey | str, *, every: float = 0.5, timeout: float | None = None
    ) -> Course:
        """Show where the job stands until it ends: in place in a notebook and on a terminal.

        Ctrl-C, or a notebook's stop button, ends the showing; the job goes on.

        Args:
            key: of the job.
            every: seconds between two looks.
            timeout: most seconds to show it.

        Raises:
            JobFailed: it failed; the message holds the verdict.
            StillRunning: it has not ended in ``timeout`` seconds; it goes on.
        """
        until = None if timeout is None else time.monotonic() + timeout
        seen: list[Progress] = []
        with Screen() as screen:
            for progress in self.watch(key, every=every):
                screen.show(progress)
                seen.append(progress)
                if until is not None and time.monotonic() > until and not progress.finished:
                    raise errors.StillRunning(f"{key} has not ended in {timeout:g} s; it goes on")
        if seen[-1].phase != "Succeeded":
            raise errors.JobFailed(f"{key} is {seen[-1].phase}: {self.verdict(key)}")
        return Course(seen)

    def events(self, key: JobKey | str) -> Events:
        """Events of the job, oldest first; of one that is gone those that the history keeps.

        Raises:
            JobNotFound: neither knows it.
        """
        wanted = key_of(key)
        if found := self.cluster.list_events(wanted):
            return Events(found)
        try:
            self.cluster.get_job(wanted)
        except errors.JobNotFound:
            record = self.record(wanted)
            if record is None:
                raise
            return Events(record.events)
        return Events(())

    def logs(
        self,
        key: JobKey | str,
        pod: str | None = None,
        *,
        container: str | None = None,
        tail: int | None = None,
    ) -> Log:
        """What a container (the one that trains) of a pod (the first) printed so far.

        Raises:
            JobNotFound: there is no such pod.
        """
        job = self.get(key)
        pods = self.cluster.list_pods(job.key)
        if pod is None and not pods:
            raise errors.JobNotFound(f"{key} has no pod yet")
        named = container or adapter_for(job.manifest).container
        return Log(self.cluster.read_log(job.key, pod or pods[0].name, named, tail=tail))

    def scale(self, key: JobKey | str, workers: int) -> ObservedJob:
        """Set Worker replicas; the world re-forms, or workers of a TFJob come and go.

        No step is lost where one ends within seconds: a pod that goes lets the world drain first.

        Raises:
            InputError: outside of what the job allows, or a TFJob whose size is fixed.
        """
        wanted = change.size(self.get(key), workers)
        job = wanted.job
        if job.key.kind != names.TFJOB:  # no world of a chief's changes
            size = job.nodes - job.replicas.get("worker", 0) + workers
            request = ScaleRequest(size, "by hand")
            with contextlib.suppress(errors.ClusterUnavailable):
                # Not running yet, or not to be reached from here: then it sees who comes and goes.
                self.cluster.call_coordinator(job.key, "POST", names.PATH_SCALE, request)
        return self.cluster.patch_job(job.key, wanted.patch)

    def pause(self, key: JobKey | str, *, wait: float = 120.0, force: bool = False) -> Paused:
        """Suspend a job, its state made durable first, and wait until its pods have gone.

        Raises:
            InputError: it has ended, is another's to suspend, or would lose what it has done.
        """
        return pausing.pause(self.cluster, key_of(key), wait=wait, force=force)

    def resume(self, key: JobKey | str) -> ObservedJob:
        """Let a suspended job go on from storage.

        Raises:
            InputError: it has ended, or is another's to resume.
        """
        return pausing.resume(self.cluster, key_of(key))

    def explain(self, key: JobKey | str) -> Explanation:
        """Why the job has its size: decisions, what they reckoned with, what came of them."""
        return explaining.explain(self.cluster, self.history, key_of(key))

    def delete(self, key: JobKey | str) -> None:
        """Delete the job with its pods; checkpoints on claims stay."""
        self.cluster.delete_job(key_of(key))
