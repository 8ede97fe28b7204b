# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which of the trainer's mounts holds the checkpoint path; the sidecar gets the same one."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from typing import Any

from rover_kf.api import names

_PER_POD_VOLUMES = ("emptyDir", "ephemeral")
_NAMESPACED = ("persistentVolumeClaim", "ephemeral")


def is_url(path: str | None) -> bool:
    """Whether checkpoints go to an object store, for which nothing is mounted."""
    return path is not None and path.startswith(names.OBJECT_SCHEMES)


def covers(mount_path: str, path: str) -> bool:
    """Whether a path lies at or below a mount."""
    mount, inner = posixpath.normpath(mount_path), posixpath.normpath(path)
    return inner == mount or inner.startswith(mount.rstrip("/") + "/")


def covering_mount(trainer: Mapping[str, Any], path: str | None) -> Mapping[str, Any] | None:
    """The trainer's innermost volume mount that holds the path; None if there is none."""
    if path is None or is_url(path):
        return None
    found = [
        mount for mount in trainer.get("volumeMounts") or () if covers(mount["mountPath"], path)
    ]
    return max(found, key=lambda mount: len(posixpath.normpath(mount["mountPath"])), default=None)


def identity(
    path: str | None, trainer: Mapping[str, Any], pod: Mapping[str, Any], namespace: str
) -> str:
    """What is equal for two jobs whose checkpoints go to the same storage; empty without a path.

    Args:
        path: of the checkpoints.
        trainer: the container.
        pod: its spec.
        namespace: of the job: a claim's name is known there alone.
    """
    if path is None:
        return ""
    if is_url(path):
        return "/".join(path.split("/")[:3])
    mount = covering_mount(trainer, path)
    volume = {} if mount is None else volume_of(pod, mount)
    for kind, source in volume.items():
        if isinstance(source, Mapping):
            told = json.dumps(source, sort_keys=True, separators=(",", ":"))
            return f"{kind} {told} of {namespace}" if kind in _NAMESPACED else f"{kind} {told}"
    return path


def volume_of(pod: Mapping[str, Any], mount: Mapping[str, Any]) -> Mapping[str, Any]:
    """The pod's volume behind a mount; empty if the manifest does not define it."""
    volumes = pod.get("volumes") or ()
    return next((item for item in volumes if item.get("name") == mount.get("name")), {})


def per_pod_volume_type(pod: Mapping[str, Any], mount: Mapping[str, Any]) -> str:
    """The type of the volume behind a mount if each pod has its own; empty if pods may share it."""
    volume = volume_of(pod, mount)
    return next((kind for kind in _PER_POD_VOLUMES if kind in volume), "")
