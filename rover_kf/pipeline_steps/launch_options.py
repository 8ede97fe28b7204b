# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The terms of a launch, and the manifest as the job of one run.

The job's name follows from run and manifest: a restarted step finds its job, another run does not,
and each iteration of a sweep has its own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import Manifest
from rover_kf.pipeline_steps.step_context import StepContext

ON_STOP = ("delete", "suspend", "keep")
ON_LEASE_EXPIRED = ("suspend", "delete", "keep")
DAY = 86400.0


@dataclasses.dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What the step and the controller hold to.

    Raises:
        InputError: a value is not allowed.
    """

    timeout_seconds: float = DAY
    """How long the job is waited for; then it is stopped as ``on_stop`` says."""
    start_seconds: float = 120.0
    """How long no operator may act on it before the step fails."""
    on_stop: str = "delete"
    """What becomes of the job when the step is stopped: delete, suspend or keep."""
    lease_seconds: float = 600.0
    """How long the step may be silent before ``on_lease_expired`` follows; 0: for ever."""
    on_lease_expired: str = "suspend"
    """What the controller does then: suspend, delete or keep."""

    def __post_init__(self) -> None:
        for name, allowed in (("on_stop", ON_STOP), ("on_lease_expired", ON_LEASE_EXPIRED)):
            if (value := getattr(self, name)) not in allowed:
                raise errors.InputError(f"{name} is {value!r}; allowed: {', '.join(allowed)}")
        for name in ("timeout_seconds", "start_seconds"):
            if (seconds := getattr(self, name)) <= 0:
                raise errors.InputError(f"{name} is {seconds:g}; allowed: more than 0 seconds")
        if self.lease_seconds < 0:
            raise errors.InputError(f"lease_seconds is {self.lease_seconds:g}; allowed: 0 or more")


MAX_NAME_LENGTH = 50
"""Of a job: its pods' names, which end in ``-worker-`` and a number, are host names."""
_DIGITS = 8


def make_job_name(manifest: Manifest, run: str) -> str:
    """Name of the job of a manifest in a run.

    Without a run it keeps its own; empty: the API server makes it of ``generateName``. In a run
    that would be another job at each attempt.
    """
    metadata = manifest["metadata"]
    name = str(metadata.get("name") or "")
    if not run:
        return name
    name = name or str(metadata["generateName"])
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), default=str)
    digest = hashlib.sha256(f"{run}\n{text}".encode()).hexdigest()[:_DIGITS]
    return f"{name[: MAX_NAME_LENGTH - _DIGITS - 1].rstrip('-')}-{digest}"


def with_launch_metadata(
    manifest: Manifest, step: StepContext, options: LaunchOptions
) -> dict[str, Any]:
    """The manifest as that step launches it; what it states of its lease stands."""
    metadata: dict[str, Any] = dict(manifest["metadata"])
    if name := make_job_name(manifest, step.run):
        metadata["name"] = name
    metadata.setdefault("namespace", step.namespace)
    if step.run:
        metadata["annotations"] = {
            f"{names.PREFIX}launch.lease": f"{options.lease_seconds:g}",
            f"{names.PREFIX}launch.on-lease-expired": options.on_lease_expired,
            **(metadata.get("annotations") or {}),
            names.LAUNCH_RUN_ANNOTATION: step.run,
            # Created with it: a step that is killed in the next moment has a lease already.
            names.LAUNCH_RENEWAL_ANNOTATION: f"{step.holder} 0",
        }
    if step.owner is not None and metadata["namespace"] == step.namespace:
        metadata["ownerReferences"] = [*(metadata.get("ownerReferences") or ()), step.owner]
    return {**manifest, "metadata": metadata}
