# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a round starts from, memory and the newest good checkpoint on storage compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import RestoreStepReply, RestoreStepRequest, SlotInfo
from rover_kf.checkpoint.format import manifest
from rover_kf.checkpoint.format.manifest import CheckpointFolder, Manifest
from rover_kf.checkpoint.resharding.step_resolution import (
    StoredStep,
    newest_in_memory,
    resolve,
)
from rover_kf.checkpoint.storage.storage_protocol import StoredCheckpoints

PAUSES = 1.0, 4.0, 15.0
"""Seconds before a checkpoint that could not be read is tried again."""

Pause = Callable[[float], bool | None]
"""Waits so many seconds; True: nobody wants the answer any more."""


def select_step(
    storage: StoredCheckpoints | None,
    requests: Sequence[RestoreStepRequest],
    absent: Sequence[SlotInfo],
    warn: Callable[[str], None],
    committed_step: int | None = None,
    *,
    pause: Pause = time.sleep,
) -> Mapping[int, RestoreStepReply]:
    """Each rank's answer (checkpoint.resolve). Blocks: call it in a thread.

    Args:
        storage: of the job; None: memory only.
        requests: one of each rank of the round.
        absent: slots of pods that take no part any more but still serve them.
        warn: is told of each checkpoint on storage that is damaged, and of reads that fail.
        committed_step: newest step that is committed there, as far as who commits has seen; 0:
            none; None:
            storage has not been looked at. Storage is not asked where memory is as new: a restart
            in place need not wait for it.
        pause: before what could not be read is tried again.

    Raises:
        StorageError: storage cannot be read, and memory can restore nothing either; or the newest
            checkpoint is newer than what memory has, and cannot be read.
        CheckpointError: checkpoints are there, all damaged, and memory can restore nothing either;
            or there is state, but of another world size than this one can restore.
    """
    above = newest_in_memory(requests, absent)
    if committed_step is not None and above and committed_step <= above:
        return resolve(requests, None, absent)
    return resolve(requests, _newest_valid(storage, above, requests, warn, pause), absent)


def same_step_on_storage(
    storage: StoredCheckpoints | None, choice: RestoreStepReply
) -> RestoreStepReply | None:
    """The choice with its bytes on storage in place of memory; None: that state is not there.

    Raises:
        StorageError: storage cannot be read.
    """
    for folder in storage.complete_folders() if storage is not None else ():
        if (folder.step, folder.generation) == state_of(choice):
            return RestoreStepReply(choice.step, "storage", path=folder.location)
    return None


def _newest_valid(
    storage: StoredCheckpoints | None,
    above: int,
    requests: Sequence[RestoreStepRequest],
    warn: Callable[[str], None],
    pause: Pause,
) -> StoredStep | None:
    """The newest checkpoint that is whole to the last byte, if newer than that step (0: any)."""
    world_size = len(requests)
    refused = {step for request in requests for step in request.rejected_steps}
    # With nothing in memory, to begin anew would in the end replace what is on storage.
    if storage is None:
        return None
    try:
        folders = storage.complete_folders()
    except errors.StorageError as error:
        warn(str(error))
        if not above:
            raise
        return None
    wrong: list[str] = []
    for folder in reversed(folders):
        if (above and folder.step <= above) or folder.step in refused:
            continue
        try:
            found = _verify_with_retries(storage, folder, warn, pause)
        except errors.CorruptSnapshot as error:
            warn(f"{folder.name} cannot be restored, trying an older one: {error}")
            wrong.append(str(error))
            continue
        return StoredStep(found.step, folder.location, found.fits(world_size), found.world_size)
    if wrong and not above:
        raise errors.CheckpointError(
            f"none of the {len(wrong)} checkpoints on storage can be restored, and none is in "
            f"memory. Of the newest: {wrong[0]}. Bring its files back, or begin anew with another "
            f"{names.PREFIX}checkpoint.path"
        )
    return None


def _verify_with_retries(
    storage: StoredCheckpoints, folder: CheckpointFolder, warn: Callable[[str], None], pause: Pause
) -> Manifest:
    """Read it; a read that fails says nothing of what is there, and is tried again.

    What is newer must not be left behind for it: it would be the first that retention removes.
    """
    for seconds in PAUSES:
        try:
            return storage.verify(folder)
        except errors.StorageError as error:  # noqa: PERF203 - a retry
            warn(f"{folder.name} cannot be read, trying again in {seconds:g} s: {error}")
            if pause(seconds):
                raise
    try:
        return storage.verify(folder)
    except errors.StorageError as error:
        place = folder.location.removesuffix(f"/{folder.name}")
        raise errors.StorageError(
            f"{error}. Nothing older is restored as long as {folder.name} is there and cannot be "
            f"read. If it stays so, remove it: rover-kf checkpoint rm {place} {folder.name} --force"
        ) from error


def state_of(choice: RestoreStepReply) -> tuple[int | None, int]:
    """Step and round of the state that was chosen."""
    if choice.slots:
        return choice.step, choice.slots[0].origin_round
    named = manifest.parse_folder(choice.path.rstrip("/"))
    return choice.step, named.generation if named is not None else -1
