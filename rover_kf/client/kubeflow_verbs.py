# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The verbs of kubeflow's TrainingClient, by their own names, for code that is written for it.

What they return is ours: frozen views in place of models. Times are in seconds. ``job_kind`` is
``PyTorchJob`` or ``TFJob``; without it the TrainingClient's that was given, else PyTorchJob.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from rover_kf import errors
from rover_kf.api.jobs import JobKey, ObservedJob, Pod
from rover_kf.client import manifests
from rover_kf.client.live import POLL_SECONDS, LiveJobs
from rover_kf.client.trainings import Trainings


class KubeflowVerbs(Trainings, LiveJobs):
    """``create_job``, ``get_job``, ``wait_for_job_conditions`` and the others."""

    def create_job(
        self,
        job: Any = None,
        name: str | None = None,
        namespace: str | None = None,
        *,
        train_func: Callable[..., object] | None = None,
        parameters: Mapping[str, Any] | None = None,
        base_image: str = "",
        num_workers: int | str = 1,
        num_procs_per_worker: int = 1,
        resources_per_worker: Mapping[str, Any] | None = None,
    ) -> ObservedJob:
        """Submit a job (a model, a mapping), or train with a function.

        Raises:
            InputError: neither or both are given, or it is refused.
        """
        if (job is None) == (train_func is None):
            raise errors.InputError("create_job needs one of job and train_func")
        if train_func is None:
            return self.submit(job)
        return self.train(
            train_func,
            parameters=parameters,
            name=name or "",
            namespace=namespace or self.namespace,
            num_workers=num_workers,
            num_procs_per_worker=num_procs_per_worker,
            resources_per_worker=resources_per_worker,
            base_image=base_image,
        )

    def get_job(
        self, name: str, namespace: str | None = None, job_kind: str | None = None
    ) -> ObservedJob:
        """Read one job."""
        return self.get(self._key(name, namespace, job_kind))

    def list_jobs(
        self, namespace: str | None = None, job_kind: str | None = None
    ) -> tuple[ObservedJob, ...]:
        """Labelled jobs of a kind in a namespace: those that the other verbs find by their names.

        Raises:
            InputError: there is no such kind.
        """
        kind = self._kind(job_kind)
        found = self.list(namespace or self.namespace)
        return tuple(job for job in found if job.key.kind == kind)

    def delete_job(
        self, name: str, namespace: str | None = None, job_kind: str | None = None
    ) -> None:
        """Delete a job with its pods."""
        self.delete(self._key(name, namespace, job_kind))

    def get_job_pods(
        self, name: str, namespace: str | None = None, *, job_kind: str | None = None
    ) -> tuple[Pod, ...]:
        """A job's pods in replica order."""
        return self.cluster.list_pods(self.get(self._key(name, namespace, job_kind)).key)

    def get_job_logs(
        self, name: str, namespace: str | None = None, job_kind: str | None = None
    ) -> dict[str, str]:
        """What the trainers of a job printed so far, by pod."""
        key = self._key(name, namespace, job_kind)
        pods = self.get_job_pods(name, namespace, job_kind=job_kind)
        return {pod.name: self.logs(key, pod.name) for pod in pods}

    def get_job_conditions(
        self, name: str, namespace: str | None = None, job_kind: str | None = None
    ) -> list[Mapping[str, Any]]:
        """The Training Operator's conditions of a job, oldest first."""
        status = self.get_job(name, namespace, job_kind).manifest.get("status") or {}
        return list(status.get("conditions") or ())

    def wait_for_job_conditions(  # noqa: PLR0917 - in kubeflow's places
        self,
        name: str,
        namespace: str | None = None,
        job_kind: str | None = None,
        expected_conditions: Collection[str] = ("Succeeded",),
        wait_timeout: float = 600,
        polling_interval: float = POLL_SECONDS,
    ) -> ObservedJob:
        """Wait until the job's last condition is one of those expected.

        Raises:
            JobFailed: it ended otherwise; the message holds the verdict.
            StillRunning: it did not get there in time; it goes on.
        """
        key, deadline = self._key(name, namespace, job_kind), time.monotonic() + wait_timeout
        while True:
            job = self.get(key)
            if job.finished:
                self.settle(key)
            if job.phase in expected_conditions:
                return job
            if job.finished:
                raise errors.JobFailed(f"{key} is {job.phase}: {self.verdict(key)}")
            if time.monotonic() > deadline:
                wanted = " or ".join(sorted(expected_conditions))
                raise errors.StillRunning(
                    f"{key} is {job.phase or 'new'}, not {wanted}, after {wait_timeout:g} s; it "
                    "goes on"
                )
            time.sleep(polling_interval)

    def is_job_created(
        self, name: str, namespace: str | None = None, job_kind: str | None = None
    ) -> bool:
        """Whether the operator has seen it."""
        told = self.get_job_conditions(name, namespace, job_kind)
        return "Created" in {item["type"] for item in told}

    def is_job_running(
        self, name: str, namespace: str | None = None, job_kind: str | None = None
    ) -> bool:
        """Whether it runs now."""
        return self.get_job(name, namespace, job_kind).phase == "Running"

    def is_job_restarting(
        self, name: str, namespace: str | None = None, job_kind: str | None = None
    ) -> bool:
        """Whether pods of it are made anew now."""
        return self.get_job(name, namespace, job_kind).phase == "Restarting"

    def is_job_succeeded(
        self, name: str, namespace: str | None = None, job_kind: str | None = None
    ) -> bool:
        """Whether it ended well."""
        return self.get_job(name, namespace, job_kind).phase == "Succeeded"

    def is_job_failed(
        self, name: str, namespace: str | None = None, job_kind: str | None = None
    ) -> bool:
        """Whether it ended otherwise."""
        return self.get_job(name, namespace, job_kind).phase == "Failed"

    def _key(self, name: str, namespace: str | None, job_kind: str | None) -> JobKey:
        return JobKey(namespace or self.namespace, name, self._kind(job_kind))

    def _kind(self, asked: str | None) -> str:
        kind = asked or self.job_kind
        if kind not in manifests.KINDS:
            allowed = " or ".join(manifests.KINDS)
            raise errors.InputError(f"job_kind is {kind!r}; allowed: {allowed}")
        return kind
