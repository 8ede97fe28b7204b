# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The launch lease as its holder sees it: an annotation on the job that is counted on."""

from __future__ import annotations

import time
from collections.abc import Callable

from rover_kf.api import names
from rover_kf.api.jobs import JobKey, ObservedJob
from rover_kf.cluster.protocol import Cluster

RENEWALS_PER_LEASE = 5
"""Renewals in the time of one lease: the controller tells of a silence after three and a third."""


def holder_of(job: ObservedJob) -> str:
    """Which step holds the job's lease; empty if none does."""
    return job.annotations.get(names.LAUNCH_RENEWAL_ANNOTATION, "").partition(" ")[0]


class LaunchLease:
    """Holds a job's lease and counts it on in time.

    Args:
        cluster: where the job is.
        holder: this step's attempt.
        clock: monotonic seconds.
    """

    def __init__(
        self, cluster: Cluster, holder: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster, self._holder, self._clock = cluster, holder, clock
        self._count = 0
        self._next = 0.0
        self._every = 0.0

    def start(self, lease_seconds: float) -> None:
        """Begin to count on what this step holds.

        Args:
            lease_seconds: of the job; 0: it is held and never counted on.
        """
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
        self._write(key, {"spec": {"runPolicy": {"suspend": False}}})

    def renew(self, job: ObservedJob) -> bool:
        """Count on if it is time to; False if another step has taken the lease.

        Args:
            job: as it was just read.
        """
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
