# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a pod knows of coordinators: the greatest generation, and a copy of its state.

peers.py sends the headers with each request to the coordinator and shows each answer here, so
copies and generations need no messages of their own.
"""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import re
from collections.abc import Callable, Mapping

from rover_kf import errors
from rover_kf.api import codec, names
from rover_kf.api.coordinator_state import STATE_VERSION, CoordinatorState
from rover_kf.sidecar import local_file
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.system import shared_volume

_log = logging.getLogger(__name__)


COORDINATOR_FILE, REPLICA_FILE = "coordinator.json", "coordinator-copy.json"


@dataclasses.dataclass(frozen=True, slots=True)
class StoredState:
    """The file."""

    pod_uid: str
    generation: int
    """Greatest generation that was heard of."""
    state: CoordinatorState | None = None


class StateFile:
    """One file; it ends with the pod.

    Args:
        volume_path: mount path of the shared volume.
        pod_uid: whose file it is: a volume may outlive its pod where it runs embedded.
        name: OWN or COPY.
    """

    def __init__(self, volume_path: pathlib.Path, pod_uid: str, name: str) -> None:
        self._path = volume_path / names.RUN_DIR / name
        self._pod_uid = pod_uid

    def write(self, generation: int, state: CoordinatorState | None) -> None:
        """Keep it in place of what was kept."""
        try:
            shared_volume.replace(
                self._path, codec.dumps(StoredState(self._pod_uid, generation, state))
            )
        except OSError as error:
            _log.warning("the coordinator's state could not be kept: %s", error)

    def read(self) -> StoredState | None:
        """What was kept; None if there is nothing of this pod's that can be read."""
        otherwise = "it is as if it were lost"
        found = local_file.read(self._path, StoredState, self._pod_uid, otherwise=otherwise)
        if found is None or found.state is None or found.state.version == STATE_VERSION:
            return found
        return None


_GENERATION = re.compile("[0-9]{1,18}")


_VERSION_HEADER = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})")


class StateReplica:
    """One a sidecar."""

    def __init__(self, settings: SidecarSettings) -> None:
        self._pod = settings.pod
        self._file = StateFile(settings.volume_path, settings.pod_uid, REPLICA_FILE)
        self.generation = 0
        """Greatest generation that was heard of."""
        self.state: CoordinatorState | None = None
        self.on_replaced: Callable[[], None] = lambda: None
        """Called when another coordinator is heard of than before."""

    def load(self) -> None:
        """Go on with what an earlier sidecar of this pod knew."""
        kept = self._file.read()
        if kept is not None:
            self.generation, self.state = kept.generation, kept.state

    def headers(self) -> dict[str, str]:
        """Of a request to the coordinator."""
        found = {names.POD_HEADER: self._pod, names.GENERATION_HEADER: str(self.generation)}
        return found | ({names.COPY_HEADER: to_header(self.state)} if self.state else {})

    def admit(self, status: int, headers: Mapping[str, str]) -> None:
        """Take an answer's generation.

        Args:
            status: of the answer.
            headers: of the answer.

        Raises:
            ClusterUnavailable: a coordinator has answered that was replaced.
        """
        given = headers.get(names.GENERATION_HEADER, "")
        if not _GENERATION.fullmatch(given):
            if status < 400 and self.generation:  # noqa: PLR2004 - whoever refuses need not be one
                raise errors.ClusterUnavailable("somebody answered who is no coordinator")
            return
        generation = int(given)
        if generation < self.generation:
            raise errors.ClusterUnavailable(
                f"a coordinator of generation {generation} answered, {self.generation} has "
                "replaced it"
            )
        if generation > self.generation:
            is_another, self.generation = self.generation > 0, generation
            self._file.write(self.generation, self.state)
            if is_another:
                self.on_replaced()

    def is_behind(self, headers: Mapping[str, str]) -> bool:
        """Whether an answer offers a newer copy than this pod keeps."""
        offered = from_header(headers.get(names.COPY_HEADER, ""))
        return offered > (from_header(to_header(self.state)) if self.state else (0, 0))

    def update(self, state: CoordinatorState) -> None:
        """Keep a copy, unless a newer one is here."""
        if self.state is None or from_header(to_header(state)) > from_header(to_header(self.state)):
            self.state = state
            self._file.write(self.generation, state)


def to_header(state: CoordinatorState) -> str:
    """How a copy is told in a header."""
    return f"{state.generation}.{state.revision}"


def from_header(value: str) -> tuple[int, int]:
    """A header's generation and revision; (0, 0) where it tells of none."""
    found = _VERSION_HEADER.fullmatch(value)
    return (int(found[1]), int(found[2])) if found else (0, 0)
