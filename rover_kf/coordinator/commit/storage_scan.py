# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a coordinator that starts learns from storage: what is committed, and its first round."""

from __future__ import annotations

import asyncio
import dataclasses
import time

from rover_kf import errors
from rover_kf.checkpoint.commit import Key
from rover_kf.checkpoint.storage.storage_protocol import StoredCheckpoints

SECONDS = 20.0
"""How long storage is waited for; the probe of a sidecar that starts gives it 60."""


@dataclasses.dataclass(frozen=True, slots=True)
class StorageScan:
    """What was found."""

    generation: int
    """Number for the first round: above everything that is on storage."""
    committed: Key | None = None
    """The newest checkpoint."""
    error: str = ""
    """Why storage could not be read. The number is then the time in Unix seconds, which is above
    all that rounds have counted to."""


async def scan(storage: StoredCheckpoints, *, seconds: float = SECONDS) -> StorageScan:
    """Look once; training must not wait for a storage that does not answer.

    Args:
        storage: of the job.
        seconds: after which it counts as unreadable.
    """
    try:
        return await asyncio.wait_for(asyncio.to_thread(_read, storage), seconds)
    except errors.StorageError as error:
        return StorageScan(int(time.time()), error=str(error))
    except asyncio.TimeoutError:
        wrong = f"storage has not answered for {seconds:g} s; the first round is not kept waiting"
        return StorageScan(int(time.time()), error=wrong)


def _read(storage: StoredCheckpoints) -> StorageScan:
    folders, whole = storage.folders(), storage.complete_folders()
    generation = max((folder.generation for folder in folders), default=0) + 1
    if not whole:
        return StorageScan(generation)
    storage.ensure_durable(whole[-1])
    return StorageScan(generation, (whole[-1].generation, whole[-1].step))
