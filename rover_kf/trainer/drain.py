# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The step at which all ranks save and leave, since the job is about to change its size."""

from __future__ import annotations

import contextlib
import os
import pathlib

from rover_kf.api import names


class Drain:
    """What the launcher has written for its processes.

    Args:
        home: mount path of the shared volume.
    """

    def __init__(self, home: pathlib.Path) -> None:
        self._path = home / names.DRAIN_FILE

    def is_due(self, step: int) -> bool:
        """Whether the process leaves after this step; one system call where it does not."""
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                drain_at = int.from_bytes(os.read(descriptor, 8), "little")
            finally:
                os.close(descriptor)
            return 0 < drain_at <= step
        return False
