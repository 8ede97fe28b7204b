# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Security contexts: the sidecar fits the restricted profile; the pod's group may write storage."""

from __future__ import annotations

from typing import Any

from rover_kf.injection import keyed_lists
from rover_kf.injection.injection_plan import SIDECAR_USER, ReplicaPlan


def container_context(plan: ReplicaPlan) -> dict[str, Any]:
    """For our own containers.

    The user is the trainer's where the manifest says it, since both write the checkpoint volume;
    a trainer that is stated to be root makes a root sidecar, still without capabilities.
    """
    context: dict[str, Any] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": plan.user != 0,
        "runAsUser": plan.user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if plan.group is not None:
        context["runAsGroup"] = plan.group
    return context


def apply(pod: keyed_lists.Tree, plan: ReplicaPlan) -> dict[str, Any]:
    """Give storage volumes to the sidecar's group, unless the pod names a group itself.

    Never taken away again: afterwards it cannot be told from a user's own.
    """
    context = pod.get("securityContext") or {}
    if plan.storage_mount is None or "fsGroup" in context:
        return dict(pod)
    ours = {"fsGroup": SIDECAR_USER, "fsGroupChangePolicy": "OnRootMismatch"}
    return {**pod, "securityContext": {**ours, **context}}
