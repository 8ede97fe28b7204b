# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a pod knows of coordinators: the greatest generation, and a copy of its state.

peers.py sends the headers with each request to the coordinator and shows each answer here, so
copies and generations need no messages of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.coordinator_state import CoordinatorState
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.sidecar.state_file import COPY, StateFile

_GENERATION = re.compile("[0-9]{1,18}")
_LABEL = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})")


class StateCopy:
    """One a sidecar."""

    def __init__(self, settings: SidecarSettings) -> None:
        self._pod = settings.pod
        self._file = StateFile(settings.home, settings.pod_uid, COPY)
        self.known = 0
        """Greatest generation that was heard of."""
        self.state: CoordinatorState | None = None
        self.replaced: Callable[[], None] = lambda: None
        """Called when another coordinator is heard of than before."""

    def begin(self) -> None:
        """Go on with what an earlier sidecar of this pod knew."""
        kept = self._file.read()
        if kept is not None:
            self.known, self.state = kept.known, kept.state

    def headers(self) -> dict[str, str]:
        """Of a request to the coordinator."""
        found = {names.POD_HEADER: self._pod, names.GENERATION_HEADER: str(self.known)}
        return found | ({names.COPY_HEADER: label(self.state)} if self.state else {})

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
            if status < 400 and self.known:  # noqa: PLR2004 - whoever refuses need not be one
                raise errors.ClusterUnavailable("somebody answered who is no coordinator")
            return
        generation = int(given)
        if generation < self.known:
            raise errors.ClusterUnavailable(
                f"a coordinator of generation {generation} answered, {self.known} has replaced it"
            )
        if generation > self.known:
            is_another, self.known = self.known > 0, generation
            self._file.write(self.known, self.state)
            if is_another:
                self.replaced()

    def is_behind(self, headers: Mapping[str, str]) -> bool:
        """Whether an answer offers a newer copy than this pod keeps."""
        offered = order(headers.get(names.COPY_HEADER, ""))
        return offered > (order(label(self.state)) if self.state else (0, 0))

    def take(self, state: CoordinatorState) -> None:
        """Keep a copy, unless a newer one is here."""
        if self.state is None or order(label(state)) > order(label(self.state)):
            self.state = state
            self._file.write(self.known, state)


def label(state: CoordinatorState) -> str:
    """How a copy is told in a header."""
    return f"{state.generation}.{state.revision}"


def order(told: str) -> tuple[int, int]:
    """A header's generation and revision; (0, 0) where it tells of none."""
    found = _LABEL.fullmatch(told)
    return (int(found[1]), int(found[2])) if found else (0, 0)
