# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The clock of a process that runs can be set, and set right again."""

from __future__ import annotations

import platform
import subprocess
import sys
import time

import pytest
from testcluster import clocks

_TELLS = """
import sys, time
for line in sys.stdin:
    print(time.time(), time.monotonic(), flush=True)
"""
_CLOSE_SECONDS = 60.0


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the code that is written is for x86-64")
def test_a_clock_is_set_and_set_right():
    """Ahead and behind inside the block, right after it; seconds go on being counted as ever."""
    command = [sys.executable, "-c", _TELLS]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def off() -> tuple[float, float]:
            process.stdin.write("\n")
            process.stdin.flush()
            wall, monotonic = map(float, process.stdout.readline().split())
            return wall - time.time(), monotonic - time.monotonic()

        seen = [off()]
        for seconds in (3600, -3600):
            with clocks.ahead(lambda: [process.pid], seconds):
                seen.append(off())
            seen.append(off())
        process.stdin.close()
    wanted = (0, 3600, 0, -3600, 0)
    assert [round(wall / _CLOSE_SECONDS) * _CLOSE_SECONDS for wall, _ in seen] == [*wanted]
    assert all(abs(monotonic) < _CLOSE_SECONDS for _, monotonic in seen)
