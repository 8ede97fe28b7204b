# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""JobSpec: a manifest that was parsed at the boundary; code behind it takes this value."""

from __future__ import annotations

import dataclasses

from rover_kf.api.jobs import Manifest, ObservedJob
from rover_kf.job_kinds import registry, schema
from rover_kf.job_kinds.job_kind import JobKind, Replica


@dataclasses.dataclass(frozen=True, slots=True)
class JobSpec:
    """A job's manifest with its kind."""

    kind: JobKind
    manifest: Manifest

    @classmethod
    def parse(cls, manifest: Manifest, *, source: str = "manifest") -> JobSpec:
        """Parse a manifest.

        Args:
            manifest: of any kind that is registered, injected already or not.
            source: file or object named in errors.

        Raises:
            ManifestError: naming key, value and what is allowed.
        """
        kind = registry.kind_of(manifest, source=source)
        schema.check_schema(manifest, kind, source)
        return cls(kind, manifest)

    @classmethod
    def from_observed(cls, job: ObservedJob) -> JobSpec:
        """The view of a job that the API server has admitted."""
        return cls(registry.kind_of_job(job), job.manifest)

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """The replica types in replica order."""
        return self.kind.replicas(self.manifest)

    @property
    def masters(self) -> int:
        """Pods that come before the workers in replica order."""
        return self.kind.masters(self.manifest)

    @property
    def workers(self) -> int:
        """Worker replicas; 0 if the job has no workers."""
        return self.kind.workers(self.manifest)

    @property
    def standalone_types(self) -> frozenset[str]:
        """Replica types of which each pod is a world of its own."""
        return self.kind.standalone_types(self.manifest)

    @property
    def is_dynamic(self) -> bool:
        """Whether its workers come and go, each a client of its own."""
        return self.kind.is_dynamic(self.manifest)
