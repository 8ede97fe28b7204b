# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Where the slots of the newest states are, which outlives the coordinator's process.

Pods that have left the world tell a coordinator nothing: one that begins anew would take what they
still serve for lost.
"""

from __future__ import annotations

import dataclasses
import logging
import pathlib

from rover_kf.api import codec, names, shared_files
from rover_kf.sidecar import pod_file
from rover_kf.sidecar.slot_places import States

_log = logging.getLogger(__name__)

NAME = "slot-places.json"


@dataclasses.dataclass(frozen=True, slots=True)
class _Kept:
    """The file."""

    pod_uid: str
    states: States


class PlacesFile:
    """One a coordinator.

    Args:
        home: mount path of the shared volume.
        pod_uid: whose file it is: a volume may outlive its pod where it runs embedded.
    """

    def __init__(self, home: pathlib.Path, pod_uid: str) -> None:
        self._path = home / names.RUN_DIR / NAME
        self._pod_uid = pod_uid

    def write(self, states: States) -> None:
        """Keep them in place of what was kept; nothing is, rather than what holds no more."""
        try:
            shared_files.replace(self._path, codec.dumps(_Kept(self._pod_uid, states)))
        except OSError as error:
            _log.warning("where slots are could not be kept: %s", error)
            self._forget()

    def read(self) -> States:
        """What was kept; nothing if there is nothing of this pod's."""
        otherwise = "pods that left are not asked"
        found = pod_file.read(self._path, _Kept, self._pod_uid, otherwise=otherwise)
        return found.states if found is not None else ()

    def _forget(self) -> None:
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("%s tells of slots as they were: %s", self._path, error)
