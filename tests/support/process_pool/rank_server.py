# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A script that has loaded torch once and forks the ranks of one world after another."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence

ROOT = pathlib.Path(__file__).parents[3]


class RankServer:
    """The running script; it ends in ``forked_ranks.serve``.

    Args:
        process: that was started.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def start(self, ranks: Sequence[Mapping[str, str]], **work: object) -> list[int]:
        """Fork a rank for each of these environments; their processes' numbers.

        ``wait`` comes before the next start.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"ranks": ranks, **work}).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer()

    def wait(self) -> list[int]:
        """The ranks' exit codes once all have ended, negative for a signal."""
        return self._answer()

    def _answer(self) -> list[int]:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


@contextlib.contextmanager
def serving(script: pathlib.Path) -> Iterator[RankServer]:
    """Start the script; what still runs of it at the end is killed."""
    with subprocess.Popen(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            yield RankServer(process)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
