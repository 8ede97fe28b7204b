# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Where a sidecar's checkpoints go when they leave memory; one for all parts of a sidecar."""

from __future__ import annotations

import dataclasses
import pathlib

from rover_kf.api import names
from rover_kf.checkpoint.storage.rank_content import SlotFileWriter
from rover_kf.checkpoint.storage.rate_limit import RateLimiter
from rover_kf.checkpoint.storage.storage_protocol import StoredCheckpoints
from rover_kf.sidecar.persist.storage_proxy import StorageProxy
from rover_kf.sidecar.settings import SidecarSettings


@dataclasses.dataclass(frozen=True, slots=True)
class JobStorage:
    """A folder or a bucket."""

    checkpoints: StoredCheckpoints
    writer: SlotFileWriter
    limiter: RateLimiter
    """On what is written."""
    proxy: StorageProxy | None = None
    """It, if it is one: that may hang."""

    @property
    def silent_seconds(self) -> float:
        """How long the storage has not answered; 0: it does, or it is a bucket."""
        return self.proxy.silent_seconds if self.proxy else 0.0

    def close(self) -> None:
        """Wait for nothing that is asked of the storage any more."""
        if self.proxy is not None:
            self.proxy.close()


def open_job_storage(settings: SidecarSettings) -> JobStorage | None:
    """Of a sidecar's job; None: its checkpoints stay in memory.

    Raises:
        InputError: the path is a URL and the client for object stores is not installed.
    """
    checkpoint = settings.policy.checkpoint
    path, cap = checkpoint.path, RateLimiter(checkpoint.bandwidth)
    if path is None:
        return None
    if not path.startswith(names.OBJECT_SCHEMES):
        folder = StorageProxy(pathlib.Path(path) / settings.job, cap)
        return JobStorage(folder, folder, cap, folder)
    from rover_kf.checkpoint.storage.factory import open_storage  # noqa: PLC0415 - likewise
    from rover_kf.checkpoint.storage.rate_limit import RateLimitedWriter  # noqa: PLC0415 - buckets alone

    bucket = open_storage(path, settings.job)
    return JobStorage(bucket, RateLimitedWriter(bucket, cap), cap)
