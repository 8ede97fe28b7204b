# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a round starts from, memory and the newest good checkpoint on storage compared.

Of checkpoints on storage names and sizes are compared here. The ranks verify the bytes that they
read, and ask again where these are damaged.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import RestoreStepReply, RestoreStepRequest, SlotInfo
from rover_kf.api.states import State
from rover_kf.checkpoint.format.manifest import CheckpointFolder, Manifest
from rover_kf.checkpoint.resharding.step_resolution import (
    StoredStep,
    newest_in_memory,
    resolve,
)
from rover_kf.checkpoint.storage.storage_protocol import StoredCheckpoints

PAUSES = 1.0, 4.0, 15.0
"""Seconds before a checkpoint that could not be read is tried again."""

NO_DAMAGES: Mapping[State, str] = MappingProxyType({})

Pause = Callable[[float], bool | None]
"""Waits so many seconds; True: nobody wants the answer any more."""


def select_step(
    storage: StoredCheckpoints | None,
    requests: Sequence[RestoreStepRequest],
    absent: Sequence[SlotInfo],
    warn: Callable[[str], None],
    *,
    scanned: bool = False,
    committed: State | None = None,
    damaged: Mapping[State, str] = NO_DAMAGES,
    pause: Pause = time.sleep,
) -> Mapping[int, RestoreStepReply]:
    """Each rank's answer (checkpoint.resolve). Blocks: call it in a thread.

    Args:
        storage: of the job; None: memory only.
        requests: one of each rank of the round.
        absent: slots of pods that take no part any more but still serve them.
        warn: is told of each checkpoint on storage that is damaged, and of reads that fail.
        scanned: whether it is known what is committed. Storage is not asked where memory is as
            new: a restart in place need not wait for it.
        committed: the newest state that is, as it was saved; None: none is, or it is not known.
        damaged: checkpoints on storage, as they were saved, that ranks found damaged, and how.
        pause: before what could not be read is tried again.

    Raises:
        StorageError: storage cannot be read, and memory can restore nothing either; or the newest
            checkpoint is newer than what memory has, and cannot be read.
        CheckpointError: checkpoints are there, all damaged, and memory can restore nothing either;
            or there is state, but of another world size than this one can restore.
    """
    above = newest_in_memory(requests, absent)
    if scanned and above is not None and (committed is None or committed <= above):
        return resolve(requests, None, absent)
    stored = _newest_valid(storage, above, requests, damaged, warn=warn, pause=pause)
    return resolve(requests, stored, absent)


def same_step_on_storage(
    storage: StoredCheckpoints | None, choice: RestoreStepReply
) -> RestoreStepReply | None:
    """The choice with its bytes on storage in place of memory; None: that state is not there.

    Raises:
        StorageError: storage cannot be read.
    """
    if storage is None or choice.state is None:
        return None
    for folder in storage.complete_folders():
        if folder.step == choice.state.step and _has_origin(storage, folder, choice.state):
            found = dataclasses.replace(choice, source="storage", path=folder.location)
            return dataclasses.replace(found, slots=(), alternatives=())
    return None


def _has_origin(storage: StoredCheckpoints, folder: CheckpointFolder, state: State) -> bool:
    """Whether a checkpoint holds a state; it is read only where its name does not say so."""
    if folder.state.save:
        return folder.state == state
    try:
        return storage.read_manifest(folder).origin == state
    except errors.CorruptSnapshot:
        return False


def _newest_valid(
    storage: StoredCheckpoints | None,
    above: State | None,
    requests: Sequence[RestoreStepRequest],
    damaged: Mapping[State, str],
    *,
    warn: Callable[[str], None],
    pause: Pause,
) -> StoredStep | None:
    """The newest checkpoint that is whole, if newer than that (None: any)."""
    world_size = len(requests)
    refused = {state for request in requests for state in request.rejected}
    if storage is None:
        return None
    wrong: list[str] = []
    for folder in _newer_folders(storage, above, warn):
        if folder.state in refused:
            continue
        try:
            found = _load_with_retries(storage, folder, warn, pause)
        except errors.CorruptSnapshot as error:
            warn(f"{folder.name} cannot be restored, trying an older one: {error}")
            wrong.append(str(error))
            continue
        if _is_covered(found.origin, above):
            return None  # whatever is older was left behind by the round that stored this one
        if found.origin in damaged:
            wrong.append(damaged[found.origin])  # the rank that found it has caused the warning
        elif found.origin not in refused:
            fits = found.fits(world_size)
            return StoredStep(found.origin, folder.location, fits, found.world_size)
    if wrong and above is None:
        raise errors.CheckpointError(
            f"none of the {len(wrong)} checkpoints on storage can be restored, and none is in "
            f"memory. Of the newest: {wrong[0]}. Bring its files back, or begin anew with another "
            f"{names.PREFIX}checkpoint.path"
        )
    return None


def _newer_folders(
    storage: StoredCheckpoints, above: State | None, warn: Callable[[str], None]
) -> Iterable[CheckpointFolder]:
    """Checkpoints that are newer than that (None: all), the newest first."""
    try:
        folders = storage.complete_folders()
    except errors.StorageError as error:
        warn(str(error))
        # With nothing in memory, to begin anew would in the end replace what is on storage.
        if above is None:
            raise
        return ()
    return itertools.takewhile(lambda folder: not _is_covered(folder.state, above), folders[::-1])


def _is_covered(state: State, above: State | None) -> bool:
    return above is not None and state <= above


def _load_with_retries(
    storage: StoredCheckpoints, folder: CheckpointFolder, warn: Callable[[str], None], pause: Pause
) -> Manifest:
    """Load it; a read that fails says nothing of what is there, and is tried again.

    What is newer must not be left behind for it: it would be the first that retention removes.
    """
    for seconds in PAUSES:
        try:
            return storage.load(folder)
        except errors.StorageError as error:  # noqa: PERF203 - a retry
            warn(f"{folder.name} cannot be read, trying again in {seconds:g} s: {error}")
            if pause(seconds):
                raise
    try:
        return storage.load(folder)
    except errors.StorageError as error:
        raise unreadable_error(folder.location, error) from error


def unreadable_error(location: str, error: errors.StorageError) -> errors.StorageError:
    """The error for a checkpoint that cannot be read, with what to do.

    Args:
        location: of its folder.
        error: of the read.
    """
    place, _, name = location.rstrip("/").rpartition("/")
    return errors.StorageError(
        f"{error}. Nothing older is restored as long as {name} is there and cannot be "
        f"read. If it stays so, remove it: rover-kf checkpoint rm {place} {name} --force"
    )
