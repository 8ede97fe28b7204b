# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A coordinator's state in the pod's volume: its own, or the copy that another pod keeps of it."""

from __future__ import annotations

import dataclasses
import logging
import pathlib

from rover_kf.api import codec, names, shared_files
from rover_kf.api.coordinator_state import STATE_VERSION, CoordinatorState
from rover_kf.sidecar import pod_file

_log = logging.getLogger(__name__)

OWN, COPY = "coordinator.json", "coordinator-copy.json"


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """The file."""

    pod_uid: str
    known: int
    """Greatest generation that was heard of."""
    state: CoordinatorState | None = None


class StateFile:
    """One file; it ends with the pod.

    Args:
        home: mount path of the shared volume.
        pod_uid: whose file it is: a volume may outlive its pod where it runs embedded.
        name: OWN or COPY.
    """

    def __init__(self, home: pathlib.Path, pod_uid: str, name: str) -> None:
        self._path = home / names.RUN_DIR / name
        self._pod_uid = pod_uid

    def write(self, known: int, state: CoordinatorState | None) -> None:
        """Keep it in place of what was kept."""
        try:
            shared_files.replace(self._path, codec.dumps(Kept(self._pod_uid, known, state)))
        except OSError as error:
            _log.warning("the coordinator's state could not be kept: %s", error)

    def read(self) -> Kept | None:
        """What was kept; None if there is nothing of this pod's that can be read."""
        otherwise = "it is as if it were lost"
        found = pod_file.read(self._path, Kept, self._pod_uid, otherwise=otherwise)
        if found is None or found.state is None or found.state.version == STATE_VERSION:
            return found
        return None
