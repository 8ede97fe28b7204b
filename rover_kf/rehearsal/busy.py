# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Cores that this process and its children keep busy."""

from __future__ import annotations

import os
import time

from rover_kf.api import proc_files


class Busy:
    """CPU time over wall time since ``begin``."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()
        self._used = 0.0
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self._begun, self._used = time.perf_counter(), _used()

    @property
    def seconds(self) -> float:
        """Since then."""
        return time.perf_counter() - self._begun

    def cores(self) -> float:
        """Mean since then; children that ended meanwhile do not count."""
        return max(0.0, _used() - self._used) / max(self.seconds, 1e-9)


def _used() -> float:
    children = proc_files.children(os.getpid())
    return time.process_time() + sum(map(proc_files.cpu_seconds, children))
