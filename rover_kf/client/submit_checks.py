# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the client itself looks at before it acts: this machine's storage, a job's bounds."""

from __future__ import annotations

import os
import pathlib

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import ObservedJob
from rover_kf.client.manifests import ManifestSource
from rover_kf.injection import sizing, storage_mount
from rover_kf.injection.adapters import adapter_for
from rover_kf.injection.validation import validate


def check_workers(job: ObservedJob, workers: int) -> None:
    """Refuse a number of Worker replicas that the job may not have.

    Raises:
        InputError: with those that it may; or its annotations are wrong.
    """
    if isinstance(workers, bool) or not isinstance(workers, int):
        raise errors.InputError(f"{job.key}: {workers!r} worker replicas; allowed: a whole number")
    policy = validate.validate(job.manifest, allow_unmounted=True)
    low, high = sizing.worker_bounds(job.manifest, policy, adapter_for(job.manifest))
    sizes = policy.scaling.sizes
    if not low <= workers <= high:
        allowed = f"{low} to {high} (scaling.min and scaling.max, else spec.elasticPolicy)"
    elif sizes and workers not in sizes:
        allowed = f"{', '.join(map(str, sizes))} (scaling.sizes)"
    else:
        return
    raise errors.InputError(f"{job.key}: {workers} worker replicas; allowed: {allowed}")


def check_storage(source: ManifestSource) -> None:
    """Refuse an embedded job whose checkpoint path is not on a volume and cannot be written here.

    (Volumes are the embedded cluster's to look at.)

    Raises:
        PolicyError: with the path and why it cannot be written.
    """
    policy = validate.validate(source.job, source=source.name, allow_unmounted=True)
    path = policy.checkpoint.path
    if path is None:
        return
    if storage_mount.is_url(path):
        allowed = "a folder: an embedded run has no Secret with an object store's credentials"
        key = f"{names.PREFIX}checkpoint.path"
        raise errors.PolicyError(key, path, allowed=allowed, source=source.name)
    adapter = adapter_for(source.job)
    for replica in adapter.replicas(source.job):
        if storage_mount.covering_mount(adapter.trainer(replica), path) is None:
            why = unwritable_reason(pathlib.Path(path))
            if why:
                key = f"{names.PREFIX}checkpoint.path"
                allowed = f"a folder on a volume or one that can be written here ({why})"
                raise errors.PolicyError(key, path, allowed=allowed, source=source.name)


def unwritable_reason(folder: pathlib.Path) -> str:
    """Why a folder cannot be made and written; empty if it can. Makes nothing."""
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not place.is_dir():
        return f"{place} is no folder"
    if not os.access(place, os.W_OK | os.X_OK):
        return f"{place} is not to be written by this user"
    if os.statvfs(place).f_flag & os.ST_RDONLY or str(place).startswith(("/proc", "/sys")):
        return f"{place} is read-only"
    return ""
