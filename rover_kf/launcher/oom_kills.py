# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How many processes of this container the kernel has killed for want of memory, and at what limit.

Read around each death: under cgroup v1 only the child dies and nobody else is told.
"""

from __future__ import annotations

import pathlib

V2 = pathlib.Path("/sys/fs/cgroup/memory.events")
V1 = pathlib.Path("/sys/fs/cgroup/memory/memory.oom_control")
LIMIT_V2 = pathlib.Path("/sys/fs/cgroup/memory.max")
LIMIT_V1 = pathlib.Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")
NO_LIMIT = 1 << 60
"""Bytes; cgroup v1 writes a number of that size where there is no limit, v2 the word ``max``."""


def count(paths: tuple[pathlib.Path, ...] = (V2, V1)) -> int:
    """The control group's oom_kill counter; 0 where there is none to read."""
    for place in paths:
        try:
            lines = place.read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0


def limit(paths: tuple[pathlib.Path, ...] = (LIMIT_V2, LIMIT_V1)) -> int:
    """Bytes that the control group may use now; 0 where there is no limit, or none to read."""
    for place in paths:
        try:
            text = place.read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdigit() and int(text) < NO_LIMIT else 0
    return 0
