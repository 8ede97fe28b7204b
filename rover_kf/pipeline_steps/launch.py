# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job launched, kept and awaited by a step of a pipeline.

A restarted step finds its job by the name. The lease ends a job whose step does not come back.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from typing import final

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import JobKey, Manifest, ObservedJob
from rover_kf.client import Progress, RoverClient, manifests
from rover_kf.cluster.protocol import Cluster
from rover_kf.injection.inject import is_injected
from rover_kf.job_kinds.registry import kind_named
from rover_kf.pipeline_steps.job_status import EventReader, StepLog, observe_job
from rover_kf.pipeline_steps.launch_options import LaunchOptions, with_launch_metadata
from rover_kf.pipeline_steps.step_context import StepContext
from rover_kf.reconcilers import status_annotation
from rover_kf.system.signals import StopSignals

RENEWALS_PER_LEASE = 5
"""Renewals in the time of one lease: the controller tells of a silence after three and a third."""


def holder_of(job: ObservedJob) -> str:
    """Which step holds the job's lease; empty if none does."""
    return job.annotations.get(names.LAUNCH_RENEWAL_ANNOTATION, "").partition(" ")[0]


class LaunchLease:
    """A job's lease, held by one attempt of a step."""

    def __init__(
        self, cluster: Cluster, holder: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster, self._holder, self._clock = cluster, holder, clock
        self._count = 0
        self._next = 0.0
        self._every = 0.0

    def start(self, lease_seconds: float) -> None:
        """Begin to renew a lease of so many seconds; 0: it is never renewed."""
        self._every = lease_seconds / RENEWALS_PER_LEASE
        self._next = self._clock() + self._every

    def acquire(self, key: JobKey) -> None:
        """Hold the lease from now on, whoever held it.

        Raises:
            NoSuchJob: there is no such job.
        """
        self._write(key, {})

    def resume(self, key: JobKey) -> None:
        """Hold the lease of a suspended job, and let it go on."""
        self._write(key, {"spec": kind_named(key.kind).suspend_patch(suspended=False)})

    def renew(self, job: ObservedJob) -> bool:
        """Renew the lease if it is time; return whether no other step holds it."""
        if holder_of(job) not in ("", self._holder):
            return False
        if self._every and self._clock() >= self._next:
            self._write(job.key, {})
            self._next = self._clock() + self._every
        return True

    def release(self, key: JobKey) -> None:
        """Hold it no longer: nothing follows from this step's end."""
        patch = {"metadata": {"annotations": {names.LAUNCH_RENEWAL_ANNOTATION: None}}}
        self._cluster.patch_job(key, patch)

    def _write(self, key: JobKey, more: dict[str, object]) -> None:
        self._count += 1
        text = f"{self._holder} {self._count}"
        kept = {"metadata": {"annotations": {names.LAUNCH_RENEWAL_ANNOTATION: text}}}
        self._cluster.patch_job(key, {**kept, **more})


POLL_SECONDS = 2.0
UNAVAILABLE_SECONDS = 600.0
"""How long the API server may be away before the step gives up; the job goes on by itself."""
DELETION_SECONDS = 300.0
"""How long a job of that name that is being deleted may take to go."""


@dataclasses.dataclass(frozen=True, slots=True)
class LaunchedJob:
    """A job that was seen through."""

    key: JobKey
    last: Progress


@final
class JobLauncher:
    """A launcher, or adopter, of one job that waits for its end.

    ``say`` takes the lines of the log, the process's output by default; ``every`` is in seconds.
    """

    def __init__(
        self,
        rover: RoverClient,
        step: StepContext,
        options: LaunchOptions,
        *,
        say: Callable[[str], None] | None = None,
        every: float = POLL_SECONDS,
    ) -> None:
        self._rover, self._step, self._options = rover, step, options
        self._say = say or functools.partial(print, flush=True)
        self._every = every
        self._lease = LaunchLease(rover.cluster, step.holder)
        self._step_log = StepLog(self._say)
        self._event_reader = EventReader(rover, self._say)

    def run(self, manifest: Manifest | str, *, inject: bool = True) -> LaunchedJob:
        """Launch the job and wait; without ``inject`` the controller's webhook patches it.

        Raises:
            InputError: the manifest, or the job, was refused.
            JobExists: a job of that name is not of this run.
            JobFailed: it ended without success, or the step was stopped.
            ClusterUnavailable: no operator acts on it, or the API server is away.
        """
        for note in self._step.notes:
            self._say(f"note: {note}")
        given = manifests.load(manifest).job
        # What was patched under another name names that job's pods.
        inject = inject or is_injected(given)
        job = with_launch_metadata(given, self._step, self._options)
        with StopSignals() as stopping:
            key = self._start(job, stopping, inject=inject)
            return LaunchedJob(key, self._wait_finished(key, stopping))

    # -- its beginning -----------------------------------------------------------------------------

    def _start(self, manifest: Manifest, stopping: StopSignals, *, inject: bool) -> JobKey:
        for last in self._tries(stopping, DELETION_SECONDS):
            try:
                job = self._rover.submit(manifest, inject=inject)
            except errors.JobExists:  # noqa: PERF203 - a retry is what the loop is for
                found = self._find_job(manifest)
                if found is not None:
                    return self._adopt(found)
            except errors.ClusterUnavailable as away:
                if last:
                    raise
                self._say(f"tried again: {away}")
            else:
                self._say(f"{job.key} is created")
                self._lease.start(self._options.lease_seconds)
                return job.key
        key = manifests.load(manifest).key
        raise errors.JobExists(
            f"{key} is being deleted for {DELETION_SECONDS:g} s: wait, or rename it"
        )

    def _find_job(self, manifest: Manifest) -> ObservedJob | None:
        """The job of that name; None if it went, or is about to."""
        try:
            job = self._rover.get(manifests.load(manifest).key)
        except errors.NoSuchJob:
            return None
        run = job.annotations.get(names.LAUNCH_RUN_ANNOTATION, "")
        if self._step.run and run != self._step.run:
            whose = f"run {run}" if run else "no run of a pipeline"
            raise errors.JobExists(
                f"{job.key} is there already, of {whose}, not of {self._step.run}: delete it, or "
                "give the manifest another name"
            )
        return None if job.deleting else job

    def _adopt(self, job: ObservedJob) -> JobKey:
        self._say(f"{job.key} is there already: waiting for it")
        # Not what a person or a queue has suspended: those have the word on it.
        ended = status_annotation.read(job).launch.expired_at or not holder_of(job)
        if self._step.run and job.suspended and ended and not job.finished:
            self._say(f"{job.key} was suspended when its step was gone: resumed")
            self._lease.resume(job.key)
        if self._step.run and not job.finished:
            self._lease.start(self._options.lease_seconds)
            self._lease.acquire(job.key)
        return job.key

    def _tries(self, stopping: StopSignals, seconds: float) -> Iterator[bool]:
        """Whether it is the last one; ends early when the step is stopped."""
        deadline = time.monotonic() + seconds
        while True:
            last = time.monotonic() > deadline
            yield last
            if last:
                return
            if stopping.wait(self._every):
                raise errors.JobFailed(f"stopped by {stopping.signal} before a job was there")

    # -- its course --------------------------------------------------------------------------------

    def _wait_finished(self, key: JobKey, stopping: StopSignals) -> Progress:
        began = heard = time.monotonic()
        last: Progress | None = None
        while True:
            try:
                last = self._observe(key, last)
                heard = time.monotonic()
                if last.finished:
                    self._rover.wait(key)
                    return last
            except errors.NoSuchJob as gone:
                raise errors.JobFailed(f"{key} was deleted while it was waited for") from gone
            except errors.ClusterUnavailable as away:
                if time.monotonic() - heard > UNAVAILABLE_SECONDS:
                    raise
                self._say(f"looked at again in a moment: {away}")
            waited = time.monotonic() - began
            if last is not None and not last.phase and waited > self._options.start_seconds:
                raise self._delete_not_acted_on(key, waited)
            if waited > self._options.timeout_seconds:
                raise errors.JobFailed(
                    f"{key} has not ended in {waited:.0f} s (timeout_seconds): {self._stop(key)}"
                )
            if stopping.wait(self._every):
                raise errors.JobFailed(f"stopped by {stopping.signal}: {self._stop(key)}")

    def _observe(self, key: JobKey, last: Progress | None) -> Progress:
        job = self._rover.get(key)
        # First of all: what is told does not matter as much.
        if self._step.run and not job.finished and not self._lease.renew(job):
            raise errors.JobFailed(f"{key} is held by another step by now: {holder_of(job)}")
        now = observe_job(self._rover, job, last)
        self._step_log.log_events(self._event_reader.events(key))
        self._step_log.log_progress(now)
        return now

    # -- its end before its time -------------------------------------------------------------------

    def _delete_not_acted_on(self, key: JobKey, waited: float) -> errors.ClusterUnavailable:
        self._rover.delete(key)
        return errors.ClusterUnavailable(
            f"no operator has acted on {key} in {waited:.0f} s (start_seconds), and it was "
            "deleted: is the Training Operator v1 running, and watching this namespace? "
            "kubectl get deployments --all-namespaces"
        )

    def _stop(self, key: JobKey) -> str:
        """Do with the job as the terms say; what was done."""
        try:
            return self._stop_job(key)
        except errors.RoverError as cause:
            lost = (
                f"its lease of {self._options.lease_seconds:g} s ends it" if self._step.run else ""
            )
            return f"the job could not be stopped: {cause}; {lost or 'it goes on'}"

    def _stop_job(self, key: JobKey) -> str:
        holder = holder_of(self._rover.get(key))
        if holder not in ("", self._step.holder):
            return f"the job is left to {holder}, which holds it by now"
        if self._options.on_stop == "delete":
            self._rover.delete(key)
            return "the job is deleted (on_stop); checkpoints on storage stay"
        if self._options.on_stop == "suspend":
            released = {"annotations": {names.LAUNCH_RENEWAL_ANNOTATION: None}}
            patch = {
                "spec": kind_named(key.kind).suspend_patch(suspended=True),
                "metadata": released,
            }
            self._rover.cluster.patch_job(key, patch)
            return "the job is suspended (on_stop); started again, the step resumes it"
        if self._step.run:
            self._lease.release(key)
        return "the job goes on (on_stop)"
