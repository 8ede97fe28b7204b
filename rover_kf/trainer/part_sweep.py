# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Removes what parameter servers have written of steps that nobody can restore any more.

After a save, beside training. A folder goes when two looks in a row, a save apart, find its step in
no memory, no copy and no checkpoint on storage; where one of these does not answer, nothing goes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection

from rover_kf import errors
from rover_kf.trainer.parts import Parts

_log = logging.getLogger("rover_kf")

_END_SECONDS = 5.0


class PartSweep:
    """One a chief.

    Args:
        parts: the folders of the job.
        held: asks which steps could still be restored.
    """

    def __init__(self, parts: Parts, held: Callable[[], Collection[int]]) -> None:
        self._parts, self._held = parts, held
        self._before: set[str] = set()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Look, in a thread of its own; does nothing while one looks. Call it after a save."""
        if self._thread is None or not self._thread.is_alive():
            # A daemon: an interpreter that ends must not wait for a slow volume.
            self._thread = threading.Thread(target=self.look, name="rover-sweep", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Wait for it, for a while."""
        if self._thread is not None:
            self._thread.join(_END_SECONDS)

    def look(self) -> None:
        """Look once, and remove what was found by the look before, too."""
        try:
            folders = self._parts.folders()
            found = self._parts.unnamed(folders, self._held())
        except (errors.RoverError, OSError) as error:
            self._before = set()
            _log.debug("rover-kf: what servers wrote of older steps stays: %s", error)
            return
        for folder in folders:
            if folder.name in found & self._before:
                self._parts.remove(folder)
        self._before = found
