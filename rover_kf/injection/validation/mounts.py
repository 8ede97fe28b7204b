# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a replica type's trainer mounts a volume where a policy wants to write."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rover_kf import errors
from rover_kf.api import names
from rover_kf.injection import storage_mount
from rover_kf.job_kinds.job_kind import Replica

_READ_ONLY_VOLUMES = ("configMap", "secret", "downwardAPI", "projected", "image")


@dataclasses.dataclass(frozen=True, slots=True)
class RequiredMount:
    """A folder that a policy names."""

    key: str
    """Of the policy, without prefix."""
    path: str


def describe_location(replica: Replica, trainer: Mapping[str, Any]) -> str:
    """Where the manifest says what is mounted."""
    return f"{replica.path}.template.spec.containers[{trainer['name']}].volumeMounts"


def find_mount(
    replica: Replica,
    trainer: Mapping[str, Any],
    required: RequiredMount,
    source: str,
    *,
    allow_unmounted: bool,
) -> Mapping[str, Any] | None:
    """The mount that the folder is on; None if there is none and none is needed.

    Args:
        replica: the type.
        trainer: its container.
        required: the folder.
        source: file or object named in errors.
        allow_unmounted: accept that no mount covers it.

    Raises:
        PolicyError: the folder cannot be on a volume.
        ManifestError: no mount covers it, or it cannot be written to.
    """
    stated = required.path
    if ".." in stated.split("/") or storage_mount.covers(names.HOME, stated):
        allowed = f"an absolute path without .. and outside {names.HOME}, which is memory"
        raise errors.PolicyError(
            names.PREFIX + required.key, stated, allowed=allowed, source=source
        )
    mount = storage_mount.covering_mount(trainer, stated)
    if mount is None:
        if allow_unmounted:
            return None
        where = [item["mountPath"] for item in trainer.get("volumeMounts") or ()]
        allowed = f"a mount that holds {stated} ({names.PREFIX}{required.key})"
        raise errors.ManifestError(
            describe_location(replica, trainer), where or None, allowed=allowed, source=source
        )
    volume = storage_mount.volume_of(replica.spec["template"]["spec"], mount)
    if mount.get("readOnly") or _is_read_only(volume):
        allowed = f"a mount that may be written: checkpoints go to {stated}"
        raise errors.ManifestError(
            describe_location(replica, trainer), dict(mount), allowed=allowed, source=source
        )
    return mount


def _is_read_only(volume: Mapping[str, Any]) -> bool:
    sources = (source for source in volume.values() if isinstance(source, Mapping))
    return any(kind in volume for kind in _READ_ONLY_VOLUMES) or any(
        source.get("readOnly") for source in sources
    )
