# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Where the slots of the newest states are, which outlives the coordinator's process.

Pods that have left the world tell a coordinator nothing: one that begins anew would take what they
still serve for lost.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import pathlib
from collections.abc import Iterator, Sequence

from rover_kf.api import codec, names
from rover_kf.api.checkpoints import SlotInfo
from rover_kf.api.states import State
from rover_kf.sidecar import local_file
from rover_kf.system import shared_volume

# A rank has two slots, and what a change of size has put together lies beside what it was made of.
_MAX_STATES = 2
"""States, the newest ones."""


_SavedBy = tuple[State, int]
"""A state as it was saved, and the size of the world that holds it."""


States = tuple[tuple[SlotInfo, ...], ...]
"""Of each state its slots, the newest last."""


class SlotLocations:
    """One a coordinator."""

    def __init__(self) -> None:
        self._states: dict[_SavedBy, tuple[SlotInfo, ...]] = {}

    @property
    def states(self) -> States:
        """What another one goes on with: it is told of each as sealed."""
        return tuple(self._states.values())

    def __iter__(self) -> Iterator[SlotInfo]:
        """All that may still be there."""
        return itertools.chain.from_iterable(self._states.values())

    def add(self, holdings: Sequence[SlotInfo]) -> None:
        """Every rank has sealed a state, or has restored it; these are its slots, one a rank."""
        for first in holdings[:1]:
            state = first.state, first.world_size
            self._states.pop(state, None)
            self._states[state] = tuple(holdings)
        while len(self._states) > _MAX_STATES:
            del self._states[next(iter(self._states))]

    def restart(self, resumed: State | None) -> None:
        """A round begins with that state, or with nothing: what came after it is given up."""
        self._states = {
            state: holdings
            for state, holdings in self._states.items()
            if resumed is not None and holdings[0].state <= resumed
        }


_log = logging.getLogger(__name__)


LOCATIONS_FILE = "slot-places.json"


@dataclasses.dataclass(frozen=True, slots=True)
class _StoredLocations:
    """The file."""

    pod_uid: str
    states: States


class SlotLocationStore:
    """One a coordinator.

    Args:
        volume_path: mount path of the shared volume.
        pod_uid: whose file it is: a volume may outlive its pod where it runs embedded.
    """

    def __init__(self, volume_path: pathlib.Path, pod_uid: str) -> None:
        self._path = volume_path / names.RUN_DIR / LOCATIONS_FILE
        self._pod_uid = pod_uid

    def write(self, states: States) -> None:
        """Keep them in place of what was kept; nothing is, rather than what holds no more."""
        try:
            shared_volume.replace(self._path, codec.dumps(_StoredLocations(self._pod_uid, states)))
        except OSError as error:
            _log.warning("where slots are could not be kept: %s", error)
            self._delete()

    def read(self) -> States:
        """What was kept; nothing if there is nothing of this pod's."""
        otherwise = "pods that left are not asked"
        found = local_file.read(self._path, _StoredLocations, self._pod_uid, otherwise=otherwise)
        return found.states if found is not None else ()

    def _delete(self) -> None:
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("%s tells of slots as they were: %s", self._path, error)
