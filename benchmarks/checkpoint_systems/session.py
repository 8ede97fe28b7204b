# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A worker process of one system, as the driver sees it."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import tempfile
from typing import Any

from benchmarks.checkpoint_systems import environments

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LONGEST_SECONDS = 300.0
MEMORY = pathlib.Path("/dev/shm")  # noqa: S108 - where the systems under test put theirs

SYSTEMS: dict[str, tuple[str, ...]] = {
    "torch.save": ("torch_save.py",),
    "dcp.save": ("dcp.py", "sync"),
    "dcp.async_save thread": ("dcp.py", "thread"),
    "dcp.async_save process": ("dcp.py", "process"),
    "torchsnapshot": ("snapshot.py",),
    "torch_checkpointing": ("checkpointing.py",),
    "dlrover": ("dlrover_flash.py",),
    "rover": ("rover.py",),
    "rover-overlap": ("rover.py", "overlap"),
}
"""Script and arguments, by name; a peer of the name has packages of its own."""


class Failed(Exception):
    """The system cannot do what was asked."""


class Session:
    """A context with one worker.

    Args:
        name: of SYSTEMS, or ``hardware_floor``.
        arguments: further ones of the script.
    """

    def __init__(self, name: str, *arguments: str) -> None:
        script, *given = SYSTEMS.get(name, (f"{name}.py",))
        python = environments.python_for(name)
        # OMP_NUM_THREADS=1 is what torchrun sets; each run of a system has names of its own.
        self._run = f"bench-{os.getpid()}-{name}".replace(" ", "-")
        environment = {
            **os.environ,
            # The system's interpreter may be another, and finds this package there.
            "PYTHONPATH": os.pathsep.join(
                [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
            "TORCHELASTIC_RUN_ID": self._run,
        }
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the session
        self._process = subprocess.Popen(
            [python, HERE / script, *given, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            text=True,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Of the worker."""
        return self._process.pid

    def ask(self, name: str, **arguments: Any) -> dict[str, Any]:
        """One request and its reply.

        Raises:
            Failed: the worker could not, died, or hangs.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": name, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as cause:
            raise Failed(self._last_words(name)) from cause
        ready, _, _ = select.select([self._process.stdout], [], [], LONGEST_SECONDS)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            raise Failed(self._last_words(name) if ready else f"{name}: no answer")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise Failed(f"{name}: {reply['error']}")
        return reply

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._process.communicate('{"do": "quit"}\n', timeout=60)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        # What a system leaves running, or in memory, must not be there for the next one.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for left in MEMORY.glob(f"{self._run}*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        self._log.close()

    def _last_words(self, name: str) -> str:
        self._log.seek(0)
        lines = self._log.read().strip().splitlines() or ["no word"]
        return f"{name}: ended with {self._process.poll()}: {lines[-1]}"
