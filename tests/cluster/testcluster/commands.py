# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Running programs: one function, whose failure carries the program's own output."""

from __future__ import annotations

import pathlib
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from typing import Protocol

from testcluster.errors import CommandFailed


class Kubectl(Protocol):
    """A cluster of either kind."""

    def kubectl(self, *words: str, text: str | None = None, timeout: float = 120) -> str:
        """Run kubectl against it."""


def run(
    command: str | Sequence[str | pathlib.Path],
    *,
    cwd: pathlib.Path | None = None,
    env: Mapping[str, str] | None = None,
    text: str | None = None,
    timeout: float = 600,
) -> str:
    """Run a program to its end and return its standard output.

    Args:
        command: words, or one string that is split as a shell would (no shell runs).
        cwd: where it runs.
        env: its whole environment; None leaves ours.
        text: its standard input.
        timeout: seconds after which it is killed.

    Raises:
        CommandFailed: it ended with another status than 0, or took too long.
    """
    words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env=env,
            input=text,
            timeout=timeout,
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise CommandFailed(shlex.join(words), 124, f"no end within {timeout} s") from late
    if done.returncode:
        raise CommandFailed(shlex.join(words), done.returncode, done.stdout + done.stderr)
    return done.stdout


def succeeds(command: str | Sequence[str | pathlib.Path], *, timeout: float = 60) -> bool:
    """Whether a program ends with status 0: a question, so its failure is an answer."""
    try:
        run(command, timeout=timeout)
    except CommandFailed:
        return False
    return True
