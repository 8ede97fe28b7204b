# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The pod's volumes: ``rover`` is in memory and shared, the others are the sidecar's alone.

They are ``rover-token`` and, where checkpoints go to a bucket with a Secret, ``rover-key``.
"""

from __future__ import annotations

from typing import Any

from rover_kf.api import names
from rover_kf.injection import items, quantities, sizing
from rover_kf.injection.plan import ReplicaPlan

TOKEN_SECONDS = 3600
"""Life of a projected token; the kubelet renews it in time."""

MOUNT = {"name": names.VOLUME, "mountPath": names.HOME}
"""The shared volume's mount in trainer, sidecar and init container."""

TOKEN_MOUNT = {"name": names.TOKEN_VOLUME, "mountPath": names.TOKEN_HOME, "readOnly": True}

KEY_MOUNT = {"name": names.KEY_VOLUME, "mountPath": names.KEY_HOME, "readOnly": True}


def is_ours(volume: items.Item) -> bool:
    """Whether a volume is one that apply() wrote, not a user's of the same name."""
    if volume.get("name") == names.VOLUME:
        return (volume.get("emptyDir") or {}).get("medium") == "Memory"
    if volume.get("name") == names.TOKEN_VOLUME:
        sources = (volume.get("projected") or {}).get("sources") or ()
        tokens = [source.get("serviceAccountToken") or {} for source in sources]
        return any(token.get("audience") == names.AUDIENCE for token in tokens)
    if volume.get("name") == names.KEY_VOLUME:
        return (volume.get("secret") or {}).get("optional") is True
    return False


def is_our_mount(mount: items.Item) -> bool:
    """Whether a trainer's mount is the shared volume's."""
    return dict(mount) == MOUNT


def apply(pod: items.Tree, plan: ReplicaPlan) -> dict[str, Any]:
    """Add the volumes, and the shared one's mount to the trainer."""
    limit = quantities.format_bytes(plan.arena_bytes + plan.scratch_bytes + sizing.VOLUME_MARGIN)
    shared = {"name": names.VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": limit}}
    keys = (_keys(plan.key_secret),) if plan.key_secret else ()
    return items.replaced(
        items.extended(pod, "volumes", last=(shared, _tokens(), *keys)),
        "containers",
        plan.container,
        lambda trainer: items.extended(trainer, "volumeMounts", last=(MOUNT,)),
    )


def remove(pod: items.Tree, container: str) -> dict[str, Any]:
    """Take them away again."""
    return items.replaced(
        items.filtered(pod, "volumes", lambda volume: not is_ours(volume)),
        "containers",
        container,
        lambda trainer: items.filtered(trainer, "volumeMounts", lambda m: not is_our_mount(m)),
    )


def _keys(secret: str) -> dict[str, Any]:
    # Where there is no such Secret, the container's environment lacks it too: that is told at
    # once, a volume that cannot be mounted only by the pod's Events.
    return {"name": names.KEY_VOLUME, "secret": {"secretName": secret, "optional": True}}


def _tokens() -> dict[str, Any]:
    certificate = {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    sources = [
        {
            "serviceAccountToken": {
                "audience": names.AUDIENCE,
                "expirationSeconds": TOKEN_SECONDS,
                "path": "token",
            }
        },
        # A second token for the API server: automounting may be switched off for the pod.
        {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "api-token"}},
        {"configMap": certificate},
    ]
    return {"name": names.TOKEN_VOLUME, "projected": {"sources": sources}}
