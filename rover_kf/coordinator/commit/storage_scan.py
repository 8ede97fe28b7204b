# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a coordinator that starts learns from storage: what is committed, and its first round."""

from __future__ import annotations

import asyncio
import dataclasses

from rover_kf import errors
from rover_kf.checkpoint.commit import Committed
from rover_kf.checkpoint.format.manifest import CheckpointFolder
from rover_kf.checkpoint.storage.storage_protocol import StoredCheckpoints

SECONDS = 20.0
"""How long storage is waited for; the probe of a sidecar that starts gives it 60."""


@dataclasses.dataclass(frozen=True, slots=True)
class StorageScan:
    """What was found."""

    first_round: int = 1
    """Number for the first round: above everything that is on storage."""
    generation: int = 0
    """The greatest one that has written there; this coordinator's is greater."""
    committed: Committed | None = None
    """The newest checkpoint."""
    error: str = ""
    """Why storage could not be read. Rounds then begin with 1: the generation sets them apart."""


async def scan(storage: StoredCheckpoints, *, seconds: float = SECONDS) -> StorageScan:
    """Look once; training must not wait for a storage that does not answer.

    Args:
        storage: of the job.
        seconds: after which it counts as unreadable.
    """
    try:
        return await asyncio.wait_for(asyncio.to_thread(_read, storage), seconds)
    except errors.StorageError as error:
        return StorageScan(error=str(error))
    except asyncio.TimeoutError:
        wrong = f"storage has not answered for {seconds:g} s; the first round is not kept waiting"
        return StorageScan(error=wrong)


def _read(storage: StoredCheckpoints) -> StorageScan:
    folders, whole = storage.folders(), storage.complete_folders()
    rounds = [folder.state.round for folder in folders]
    number = max((found.number for found in rounds), default=0) + 1
    generation = max(storage.last_generation(), *(found.generation for found in rounds), 0)
    if not whole:
        return StorageScan(number, generation)
    storage.ensure_durable(whole[-1])
    return StorageScan(number, generation, _committed(storage, whole[-1]))


def _committed(storage: StoredCheckpoints, folder: CheckpointFolder) -> Committed:
    if folder.state.save:
        return Committed(folder.state, folder.state)
    try:
        return Committed(folder.state, storage.read_manifest(folder).origin)
    except errors.CorruptSnapshot:  # told of when it is restored
        return Committed(folder.state, folder.state)
