# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job launched, kept and waited for by a step of a pipeline.

The step may be killed at any point: started again it finds its own job by its name, and the lease
that it has not counted on meanwhile ends a job that nobody comes back for.
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
from rover_kf.injection.inject import is_injected
from rover_kf.pipeline_steps import job_names
from rover_kf.pipeline_steps.job_events import Hearing
from rover_kf.pipeline_steps.job_status import look
from rover_kf.pipeline_steps.launch_options import Terms
from rover_kf.pipeline_steps.lease import Renewal, holder_of
from rover_kf.pipeline_steps.step_context import Step
from rover_kf.pipeline_steps.step_log import Narration
from rover_kf.reconcilers import status_annotation
from rover_kf.system.signals import StopSignals

LOOK_SECONDS = 2.0
AWAY_SECONDS = 600.0
"""How long the API server may be away before the step gives up; the job goes on by itself."""
GOING_SECONDS = 300.0
"""How long a job of that name that is being deleted may take to go."""


@dataclasses.dataclass(frozen=True, slots=True)
class Launched:
    """A job that was seen through."""

    key: JobKey
    last: Progress
    """The last look at it."""


@final
class Launch:
    """Launches one job, or adopts it, and waits for its end.

    Args:
        rover: the client of the place where it shall run.
        step: who launches it.
        terms: on which.
        say: takes the lines of the log; the process's output by default.
        every: seconds between two looks.
    """

    def __init__(
        self,
        rover: RoverClient,
        step: Step,
        terms: Terms,
        *,
        say: Callable[[str], None] | None = None,
        every: float = LOOK_SECONDS,
    ) -> None:
        self._rover, self._step, self._terms = rover, step, terms
        self._say = say or functools.partial(print, flush=True)
        self._every = every
        self._renewal = Renewal(rover.cluster, step.holder)
        self._narration = Narration(self._say)
        self._hearing = Hearing(rover, self._say)

    def run(self, manifest: Manifest | str, *, inject: bool = True) -> Launched:
        """See the job through.

        Args:
            manifest: of the job, as a mapping or a text.
            inject: patch it; False leaves that to the controller's webhook.

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
        job = job_names.launched(given, self._step, self._terms)
        with StopSignals() as stopping:
            key = self._begin(job, stopping, inject=inject)
            return Launched(key, self._follow(key, stopping))

    # -- its beginning -----------------------------------------------------------------------------

    def _begin(self, manifest: Manifest, stopping: StopSignals, *, inject: bool) -> JobKey:
        for last in self._tries(stopping, GOING_SECONDS):
            try:
                job = self._rover.submit(manifest, inject=inject)
            except errors.JobExists:  # noqa: PERF203 - a retry is what the loop is for
                found = self._found(manifest)
                if found is not None:
                    return self._adopt(found)
            except errors.ClusterUnavailable as away:
                if last:
                    raise
                self._say(f"tried again: {away}")
            else:
                self._say(f"{job.key} is created")
                self._renewal.begin(self._terms.lease_seconds)
                return job.key
        key = manifests.load(manifest).key
        raise errors.JobExists(
            f"{key} is being deleted for {GOING_SECONDS:g} s: wait, or rename it"
        )

    def _found(self, manifest: Manifest) -> ObservedJob | None:
        """The job of that name; None if it went, or is about to."""
        try:
            job = self._rover.get(manifests.load(manifest).key)
        except errors.JobNotFound:
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
        ended = status_annotation.read(job).launch.ended or not holder_of(job)
        if self._step.run and job.suspended and ended and not job.finished:
            self._say(f"{job.key} was suspended when its step was gone: resumed")
            self._renewal.resume(job.key)
        if self._step.run and not job.finished:
            self._renewal.begin(self._terms.lease_seconds)
            self._renewal.take(job.key)
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

    def _follow(self, key: JobKey, stopping: StopSignals) -> Progress:
        began = heard = time.monotonic()
        last: Progress | None = None
        while True:
            try:
                last = self._look(key, last)
                heard = time.monotonic()
                if last.finished:
                    self._rover.wait(key)
                    return last
            except errors.JobNotFound as gone:
                raise errors.JobFailed(f"{key} was deleted while it was waited for") from gone
            except errors.ClusterUnavailable as away:
                if time.monotonic() - heard > AWAY_SECONDS:
                    raise
                self._say(f"looked at again in a moment: {away}")
            waited = time.monotonic() - began
            if last is not None and not last.phase and waited > self._terms.start_seconds:
                raise self._unheeded(key, waited)
            if waited > self._terms.timeout_seconds:
                raise errors.JobFailed(
                    f"{key} has not ended in {waited:.0f} s (timeout_seconds): {self._stop(key)}"
                )
            if stopping.wait(self._every):
                raise errors.JobFailed(f"stopped by {stopping.signal}: {self._stop(key)}")

    def _look(self, key: JobKey, last: Progress | None) -> Progress:
        job = self._rover.get(key)
        # First of all: what is told does not matter as much.
        if self._step.run and not job.finished and not self._renewal.renew(job):
            raise errors.JobFailed(f"{key} is held by another step by now: {holder_of(job)}")
        now = look(self._rover, job, last)
        self._narration.events(self._hearing.events(key))
        self._narration.progress(now)
        return now

    # -- its end before its time -------------------------------------------------------------------

    def _unheeded(self, key: JobKey, waited: float) -> errors.ClusterUnavailable:
        self._rover.delete(key)
        return errors.ClusterUnavailable(
            f"no operator has acted on {key} in {waited:.0f} s (start_seconds), and it was "
            "deleted: is the Training Operator v1 running, and watching this namespace? "
            "kubectl get deployments --all-namespaces"
        )

    def _stop(self, key: JobKey) -> str:
        """Do with the job as the terms say; what was done."""
        try:
            return self._stopped(key)
        except errors.RoverError as cause:
            lost = f"its lease of {self._terms.lease_seconds:g} s ends it" if self._step.run else ""
            return f"the job could not be stopped: {cause}; {lost or 'it goes on'}"

    def _stopped(self, key: JobKey) -> str:
        holder = holder_of(self._rover.get(key))
        if holder not in ("", self._step.holder):
            return f"the job is left to {holder}, which holds it by now"
        if self._terms.on_stop == "delete":
            self._rover.delete(key)
            return "the job is deleted (on_stop); checkpoints on storage stay"
        if self._terms.on_stop == "suspend":
            released = {"annotations": {names.LAUNCH_RENEWAL_ANNOTATION: None}}
            patch = {"spec": {"runPolicy": {"suspend": True}}, "metadata": released}
            self._rover.cluster.patch_job(key, patch)
            return "the job is suspended (on_stop); started again, the step resumes it"
        if self._step.run:
            self._renewal.release(key)
        return "the job goes on (on_stop)"
