# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""PyTorchJob: one world of torch processes, whose Workers come and go."""

from __future__ import annotations

import dataclasses

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import Manifest
from rover_kf.api.policy import PolicySections
from rover_kf.job_kinds.job_kind import JobKind


@dataclasses.dataclass(frozen=True, kw_only=True)
class PyTorchJobKind(JobKind):
    """The kind, which has no parameter servers."""

    def check(self, manifest: Manifest, policy: PolicySections, source: str) -> None:  # noqa: ARG002
        """Reject a policy for parameter servers.

        Raises:
            PolicyError: a value that only a TFJob supports.
        """
        checkpoint = policy.checkpoint
        if checkpoint.peer_copy == "on":
            allowed = "off: a PyTorchJob's pods keep copies of each other's state by themselves"
            _reject("checkpoint.peer-copy", "on", allowed, source)
        if policy.scaling.ps_max is not None:
            allowed = "nothing: a PyTorchJob has no parameter servers"
            _reject("scaling.ps-max", policy.scaling.ps_max, allowed, source)
        if checkpoint.shards is not None:
            allowed = "nothing: it is for parameter servers, and a PyTorchJob has none"
            _reject("checkpoint.shards", checkpoint.shards, allowed, source)


def _reject(key: str, value: object, allowed: str, source: str) -> None:
    raise errors.PolicyError(names.PREFIX + key, value, allowed=allowed, source=source)


PYTORCHJOB = PyTorchJobKind(
    kind=names.PYTORCHJOB,
    plural=names.PYTORCHJOBS,
    specs="pytorchReplicaSpecs",
    container=names.PYTORCH_CONTAINER,
    kinds=("master", "worker"),
    leading_types=("master",),
    restart_policy="OnFailure",
    elastic=True,
)
