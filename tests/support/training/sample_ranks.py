# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Forks the ranks of a world for each line of its standard input, JSON: {"ranks": [environment, …],
"command": a sample script and its options, "last": a step}. Each rank does what ``python`` with
that command does; with a last step it stands still after it, until it is killed.
"""

from __future__ import annotations

import pathlib
import runpy
import signal
import sys

from rover_kf import Checkpointer
from tests.support.process_pool import forked_ranks


def train(asked: dict) -> None:
    """One rank's."""
    script, *_ = sys.argv = asked["command"]
    sys.path[0] = str(pathlib.Path(script).parent)
    if asked.get("last"):
        _stand_still_after(asked["last"])
    runpy.run_path(script, run_name="__main__")


def _stand_still_after(last: int) -> None:
    """Whoever kills the rank after some step has all the time for it: it does not end meanwhile."""
    go_on = Checkpointer.step

    def step(self: Checkpointer, number: int, *given, **named) -> None:
        go_on(self, number, *given, **named)
        while number >= last:
            signal.pause()

    Checkpointer.step = step  # type: ignore[method-assign]


if __name__ == "__main__":
    forked_ranks.serve(train)
