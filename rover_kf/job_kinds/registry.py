# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The kinds of jobs that rover-kf supports."""

from __future__ import annotations

from collections.abc import Mapping

from rover_kf import errors
from rover_kf.api.jobs import Manifest, ObservedJob
from rover_kf.job_kinds.job_kind import JobKind
from rover_kf.job_kinds.pytorchjob.kind import PYTORCHJOB
from rover_kf.job_kinds.tfjob.kind import TFJOB

REGISTERED: tuple[JobKind, ...] = (PYTORCHJOB, TFJOB)
"""The first one is that of a job that is called by its name alone."""


def job_kinds() -> tuple[JobKind, ...]:
    """Every kind, the default one first."""
    return REGISTERED


def kind_named(name: str) -> JobKind:
    """The kind of that name, such as ``PyTorchJob``.

    Raises:
        InputError: there is no such kind.
    """
    for kind in job_kinds():
        if kind.kind == name:
            return kind
    raise errors.InputError(f"{name!r} is no kind of job; allowed: {allowed_kinds()}")


def kind_operated_by(operator: str) -> JobKind:
    """The kind whose pods that operator creates; the default kind of an unknown one."""
    kinds = job_kinds()
    return next((kind for kind in kinds if kind.operator == operator), kinds[0])


def allowed_kinds() -> str:
    """The kinds, for an error."""
    return " or ".join(kind.kind for kind in job_kinds())


def kind_of(manifest: Manifest, *, source: str = "manifest") -> JobKind:
    """The kind of a manifest.

    Raises:
        ManifestError: it is of no kind that is registered.
    """
    if not isinstance(manifest, Mapping):
        raise errors.ManifestError("document", manifest, allowed="a mapping", source=source)
    name = manifest.get("kind")
    kind = next((item for item in job_kinds() if item.kind == name), None)
    if kind is None:
        raise errors.ManifestError("kind", name, allowed=allowed_kinds(), source=source)
    version = manifest.get("apiVersion")
    if version != kind.api_version:
        raise errors.ManifestError("apiVersion", version, allowed=kind.api_version, source=source)
    return kind


def kind_of_job(job: ObservedJob) -> JobKind:
    """The kind of a job that was read from the cluster."""
    return kind_named(job.key.kind)
