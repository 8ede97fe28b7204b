# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which rank each local rank is, kept beside its slots for a sidecar that takes over."""

from __future__ import annotations

import dataclasses
import logging
import os
import pathlib

from rover_kf import errors
from rover_kf.api import codec
from rover_kf.api.states import RoundId
from rover_kf.system import shared_volume

_log = logging.getLogger("rover_kf")

_FILE_BYTES = 512
"""Always as many: a file that never grows can be written in a volume that is full."""


@dataclasses.dataclass(frozen=True, slots=True)
class RankAssignment:
    """What a local rank is in the running round."""

    rank: int
    world_size: int
    round: RoundId


class RankAssignments:
    """Of all local ranks.

    Args:
        root: the arena's folder; a local rank's is made by who allocates its slots.
    """

    def __init__(self, root: pathlib.Path) -> None:
        self._root = root
        self._cached: dict[int, RankAssignment] = {}

    def set(self, local_rank: int, assignment: RankAssignment) -> None:
        """Remember what the local rank is from now on; in its folder as soon as there is one."""
        path = self._path(local_rank)
        if self.get(local_rank) == assignment and path.exists():
            return
        self._cached[local_rank] = assignment
        if path.parent.is_dir():
            _write(path, codec.dumps(assignment))

    def get(self, local_rank: int) -> RankAssignment | None:
        """What the local rank is; None if no training process ever said so."""
        if local_rank in self._cached:
            return self._cached[local_rank]
        try:
            found = codec.loads(
                RankAssignment, shared_volume.read(self._path(local_rank), _FILE_BYTES)
            )
        except (OSError, errors.ProtocolError):
            return None
        self._cached[local_rank] = found
        return found

    def _path(self, local_rank: int) -> pathlib.Path:
        return self._root / str(local_rank) / "assignment.json"


def _write(path: pathlib.Path, content: bytes) -> None:
    # One call on the file itself: nothing can be put beside it in a full volume, and whoever ends
    # this process leaves the old content or the new one.
    try:
        descriptor = shared_volume.open_file(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(descriptor, content.ljust(_FILE_BYTES), 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        _log.warning("%s cannot be kept, training goes on: %s", path, error)
