# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Forks the ranks of a world for each line of its standard input, JSON: {"ranks": [environment, …],
"command": a sample script and its options}. Each rank does what ``python`` with that command does.
"""

from __future__ import annotations

import pathlib
import runpy
import sys

import forked_ranks


def train(asked: dict) -> None:
    """One rank's."""
    script, *_ = sys.argv = asked["command"]
    sys.path[0] = str(pathlib.Path(script).parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    forked_ranks.serve(train)
