# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The pod's volumes: ``rover`` is in memory and shared, the others are the sidecar's alone.

They are ``rover-token``, ``rover-key`` where checkpoints go to a bucket with a Secret, and
``rover-tls`` where sidecars encrypt.
"""

from __future__ import annotations

from typing import Any

from rover_kf.api import names
from rover_kf.api.policy import TlsPolicy
from rover_kf.injection import keyed_lists, quantities, sizing
from rover_kf.injection.injection_plan import ReplicaPlan

NAMES = (names.VOLUME, names.TOKEN_VOLUME, names.KEY_VOLUME, names.TLS_VOLUME)

TOKEN_SECONDS = 3600
"""Life of a projected token; the kubelet renews it in time."""

MOUNT = {"name": names.VOLUME, "mountPath": names.HOME}
"""The shared volume's mount in trainer, sidecar and init container."""

TOKEN_MOUNT = {"name": names.TOKEN_VOLUME, "mountPath": names.TOKEN_HOME, "readOnly": True}

KEY_MOUNT = {"name": names.KEY_VOLUME, "mountPath": names.KEY_HOME, "readOnly": True}

TLS_MOUNT = {"name": names.TLS_VOLUME, "mountPath": names.TLS_HOME, "readOnly": True}


def _item(key: str, path: str) -> dict[str, str]:
    return {"key": key, "path": path}


_PAIR = [_item(name, name) for name in (names.TLS_CERTIFICATE, names.TLS_KEY)]


def is_managed(volume: keyed_lists.Item) -> bool:
    """Whether a volume is one that apply() wrote, not a user's of the same name."""
    if volume.get("name") == names.VOLUME:
        return (volume.get("emptyDir") or {}).get("medium") == "Memory"
    if volume.get("name") == names.TOKEN_VOLUME:
        sources = (volume.get("projected") or {}).get("sources") or ()
        tokens = [source.get("serviceAccountToken") or {} for source in sources]
        return any(token.get("audience") == names.AUDIENCE for token in tokens)
    if volume.get("name") == names.KEY_VOLUME:
        return (volume.get("secret") or {}).get("optional") is True
    if volume.get("name") == names.TLS_VOLUME:
        sources = (volume.get("projected") or {}).get("sources") or ()
        parts = [(source.get("secret") or {}).get("items") for source in sources]
        return _PAIR in parts
    return False


def is_managed_mount(mount: keyed_lists.Item) -> bool:
    """Whether a trainer's mount is the shared volume's."""
    return dict(mount) == MOUNT


def apply(pod: keyed_lists.Tree, plan: ReplicaPlan) -> dict[str, Any]:
    """Add the volumes, and the shared one's mount to the trainer."""
    limit = quantities.format_bytes(plan.arena_bytes + plan.scratch_bytes + sizing.VOLUME_MARGIN)
    shared = {"name": names.VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": limit}}
    keys = (_keys(plan.key_secret),) if plan.key_secret else ()
    tls = (_certificates(plan.policy.tls),) if plan.policy.tls.secret else ()
    return keyed_lists.replace_item(
        keyed_lists.extend_items(pod, "volumes", last=(shared, _tokens(), *keys, *tls)),
        "containers",
        plan.container,
        lambda trainer: keyed_lists.extend_items(trainer, "volumeMounts", last=(MOUNT,)),
    )


def remove(pod: keyed_lists.Tree, container: str) -> dict[str, Any]:
    """Take them away again."""
    return keyed_lists.replace_item(
        keyed_lists.filter_items(pod, "volumes", lambda volume: not is_managed(volume)),
        "containers",
        container,
        lambda trainer: keyed_lists.filter_items(
            trainer, "volumeMounts", lambda m: not is_managed_mount(m)
        ),
    )


def _keys(secret: str) -> dict[str, Any]:
    # Where there is no such Secret, the container's environment lacks it too: that is told at
    # once, a volume that cannot be mounted only by the pod's Events.
    return {"name": names.KEY_VOLUME, "secret": {"secretName": secret, "optional": True}}


def _certificates(policy: TlsPolicy) -> dict[str, Any]:
    # A pod whose certificate is not there does not start, and its Events say so: what else could it
    # do but wait. Not every issuer gives an authority's certificate, hence the second source.
    authority = [_item(names.TLS_AUTHORITIES, names.TLS_AUTHORITIES)]
    sources: list[dict[str, Any]] = [
        {"secret": {"name": policy.secret, "items": _PAIR}},
        {"secret": {"name": policy.secret, "items": authority, "optional": True}},
    ]
    if policy.authorities:
        more = [_item(names.TLS_AUTHORITIES, names.TLS_MORE_AUTHORITIES)]
        sources.append({"configMap": {"name": policy.authorities, "items": more}})
    return {"name": names.TLS_VOLUME, "projected": {"sources": sources}}


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
