# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What happens to the pods of a job that has finished; pure; used by ``operator``.

A job that a limit has ended takes all its pods with it, whatever cleanPodPolicy says; of any other
one cleanPodPolicy tells which are deleted (pkg/controller.v1/common/job.go, DeletePodsAndServices).
In a cluster those that it leaves alone go on as long as they like. Here they would go on at the
cost of the machine that somebody works at: after a while they are ended, and only their processes,
volumes and sockets go. The pod stays as one that has ended, so that its logs can be read.
"""

from __future__ import annotations

from typing import Literal

from rover_kf.api.jobs import Manifest
from rover_kf.cluster.local.settings import Timing

Fate = Literal["leave", "end", "delete"]

_ACTIVE = ("Pending", "Running")


def fate(manifest: Manifest, phase: str, *, since: float, timing: Timing) -> Fate:
    """What to do with one pod of a finished job.

    Args:
        manifest: the job, with its conditions.
        phase: of the pod.
        since: seconds since the job finished.
        timing: how long pods may take to end by themselves.
    """
    policy = (manifest["spec"].get("runPolicy") or {}).get("cleanPodPolicy", "None")
    if policy == "All" or (policy == "Running" and phase in _ACTIVE):
        return "delete"
    conditions = (manifest.get("status") or {}).get("conditions") or []
    failed = any(c["type"] == "Failed" and c["status"] == "True" for c in conditions)
    patience = timing.after_failure if failed else timing.after_success
    return "end" if phase in _ACTIVE and since >= patience else "leave"
