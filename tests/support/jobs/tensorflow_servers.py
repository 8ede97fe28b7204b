# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A chief, a worker and parameter servers of TensorFlow as processes, and nothing beside them."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import socket
import subprocess
from collections.abc import Collection, Iterator

ROOT = pathlib.Path(__file__).parents[3]
_HIDE = 'mount -t tmpfs none "$0" && exec "$@"'
"""In a mount namespace of its own: the folder is another one for this process alone."""


class Servers:
    """Processes of one script.

    Args:
        python: of TensorFlow's environment.
        words: the script and what it is told.
        servers: how many.
        hidden: folder that some servers do not see as the others do.
        blind: their numbers.
    """

    def __init__(
        self,
        python: pathlib.Path,
        words: Collection[str],
        servers: int,
        hidden: pathlib.Path | None = None,
        blind: Collection[int] = (),
    ) -> None:
        self._words = [str(python), *words]
        with contextlib.ExitStack() as stack:
            held = [stack.enter_context(socket.create_server(("", 0))) for _ in range(servers + 2)]
            places = [f"127.0.0.1:{one.getsockname()[1]}" for one in held]
        self._cluster = {"chief": places[:1], "worker": places[1:2], "ps": places[2:]}
        hide = ["unshare", "--mount", "sh", "-c", _HIDE, str(hidden)]
        self.servers = [
            self._start("ps", number, hide if number in blind else []) for number in range(servers)
        ]
        self._worker = self._start("worker", 0, [])
        self.chief = self._start("chief", 0, [])

    def say(self, verb: str) -> None:
        """Tell the chief what to do next."""
        assert self.chief.stdin is not None
        self.chief.stdin.write(verb + "\n")
        self.chief.stdin.flush()

    def heard(self, verb: str) -> str:
        """What it came to; waits for it."""
        assert self.chief.stdout is not None
        for line in self.chief.stdout:
            if line.startswith(verb + " "):
                return line.removeprefix(verb + " ").strip()
        raise AssertionError(f"the chief has ended without {verb}")

    def ask(self, verb: str) -> str:
        """Tell it, and wait for what it came to."""
        self.say(verb)
        return self.heard(verb)

    def end(self) -> None:
        """Kill what runs."""
        for process in (self.chief, self._worker, *self.servers):
            process.kill()
            process.communicate()

    def _start(self, kind: str, number: int, before: list[str]) -> subprocess.Popen[str]:
        task = {"cluster": self._cluster, "task": {"type": kind, "index": number}}
        told = {"TF_CONFIG": json.dumps(task), "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
        return subprocess.Popen(
            [*before, *self._words],
            env=os.environ | told,
            stdin=subprocess.PIPE if kind == "chief" else subprocess.DEVNULL,
            stdout=subprocess.PIPE if kind == "chief" else None,
            text=True,
        )


@contextlib.contextmanager
def running(*given: object, **options: object) -> Iterator[Servers]:
    """As Servers; ended in the end."""
    made = Servers(*given, **options)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.end()
