# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which checkpoint on storage a round can start from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rover_kf import errors
from rover_kf.api.messages import ResolveRequest
from rover_kf.checkpoint.resolve import Stored
from rover_kf.checkpoint.storage import Storage


def find(
    storage: Storage | None, requests: Sequence[ResolveRequest], warn: Callable[[str], None]
) -> Stored | None:
    """The newest checkpoint that is whole to the last byte. Blocks: call it in a thread.

    Args:
        storage: of the job; None: memory only.
        requests: of all ranks of the round; what is not newer than they hold is of no use.
        warn: is told of each that is damaged.

    Raises:
        StorageFailed: storage cannot be read, and there is nothing in memory either.
    """
    if storage is None:
        return None
    held = (holding.step for request in requests for holding in request.holdings)
    above = max(held, default=0)
    try:
        folders = storage.whole()
    except errors.StorageFailed as error:
        warn(str(error))
        if not above:
            # To begin anew would in the end replace what is there.
            raise
        return None
    for folder in reversed(folders):
        if folder.step <= above:
            continue
        try:
            found = storage.verify(folder)
        except errors.CheckpointError as error:
            warn(f"{folder.name} cannot be restored, trying an older one: {error}")
            continue
        return Stored(found.step, folder.location, found.fits(len(requests)), found.world_size)
    return None
