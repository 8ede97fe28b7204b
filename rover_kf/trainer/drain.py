# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The step at which all ranks save and leave, since the job is about to change its size."""

from __future__ import annotations

import contextlib
import os
import pathlib
import time

from rover_kf.api import names

REST_SECONDS = 60.0
"""How long a process that has saved waits for torchrun to end it."""


class Drain:
    """The launcher's order to save and leave at a step.

    ``resting`` is the folder in which the processes of torchrun mark that they have saved; None:
    rover-run started them.
    """

    def __init__(
        self, shared_dir: pathlib.Path, resting: pathlib.Path | None = None, local_rank: int = 0
    ) -> None:
        self._path = shared_dir / names.DRAIN_FILE
        self._resting, self._local_rank = resting, local_rank

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

    def leave(self) -> None:
        """End this process, which has saved.

        torchrun takes a process that ends for one that failed or is done: its processes say that
        they have saved, and wait to be ended.

        Raises:
            SystemExit: with code 143.
        """
        if self._resting is not None:
            (self._resting / str(self._local_rank)).touch()
            time.sleep(REST_SECONDS)
        raise SystemExit(names.EXIT_DRAINED)
