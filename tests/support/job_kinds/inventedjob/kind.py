# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""InventedJob: a kind of another group, which is suspended and told of in its own way."""

from __future__ import annotations

import dataclasses

from rover_kf import errors
from rover_kf.api import names
from rover_kf.job_kinds.job_kind import JobKind

PHASES = {"Complete": "Succeeded", "Broken": "Failed"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class InventedJobKind(JobKind):
    """The kind."""

    def is_suspended(self, manifest):
        return bool(manifest["spec"].get("suspend"))

    def suspend_patch(self, *, suspended):
        return {"suspend": suspended}

    def phase(self, manifest):
        state = (manifest.get("status") or {}).get("state", "")
        return PHASES.get(state, state)

    def ended_at(self, manifest):
        return (manifest.get("status") or {}).get("endedAt")

    def check(self, manifest, policy, source):  # noqa: ARG002
        if policy.checkpoint.shards is not None:
            key = names.PREFIX + "checkpoint.shards"
            raise errors.PolicyError(
                key, policy.checkpoint.shards, allowed="nothing", source=source
            )


INVENTEDJOB = InventedJobKind(
    kind="InventedJob",
    plural="inventedjobs",
    api_version="example.org/v2",
    specs="inventedReplicaSpecs",
    container="inventor",
    kinds=("leader", "worker"),
    leading_types=("leader",),
    restart_policy="OnFailure",
    elastic=True,
)
