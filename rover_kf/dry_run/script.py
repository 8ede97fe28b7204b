# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The user's script in a container's command line, and how it is run in this process."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import runpy
import sys
from collections.abc import Sequence

LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "rover_run")


@dataclasses.dataclass(frozen=True)
class UserScript:
    """A file or a module with its arguments."""

    name: str
    arguments: tuple[str, ...]
    is_module: bool = False

    def run(self) -> None:
        """Run it as ``__main__``; returns when it ends."""
        sys.argv = [self.name, *self.arguments]
        if self.is_module:
            sys.path[0] = str(pathlib.Path.cwd())
            runpy.run_module(self.name, run_name="__main__", alter_sys=True)
            return
        sys.path[0] = str(pathlib.Path(self.name).absolute().parent)
        runpy.run_path(self.name, run_name="__main__")


def parse_command(command: Sequence[str]) -> UserScript:
    """Return the script that a command line of python or torchrun runs, or raise ValueError."""
    words = list(command)
    while words and words[0] in ("/bin/sh", "sh") and len(words) > 1 and "rover-run" in words[1]:
        words = ["torchrun", *words[2:]]
    if not words:
        raise ValueError("the command is empty")
    program = os.path.basename(words[0])  # noqa: PTH119 - of a container, not a path of this machine
    if program in ("torchrun", "rover-run"):
        return _parse_launcher(words[1:])
    if program.startswith("python"):
        return _parse_python(words[1:])
    raise ValueError(f"{program} is neither python nor torchrun")


def _parse_python(words: list[str]) -> UserScript:
    while words and words[0].startswith("-") and words[0] != "-m":
        words = words[2:] if words[0] in ("-W", "-X") else words[1:]
    if words[:1] == ["-m"]:
        if len(words) < 2:  # noqa: PLR2004 - the flag and its module
            raise ValueError("python -m names no module")
        if words[1] in LAUNCHERS:
            return _parse_launcher(words[2:])
        return UserScript(words[1], tuple(words[2:]), is_module=True)
    if not words:
        raise ValueError("python is given no script")
    if os.path.basename(words[0]) == "rover_run.py":  # noqa: PTH119 - as above
        return _parse_launcher(words[1:])
    return UserScript(words[0], tuple(words[1:]))


def _parse_launcher(words: list[str]) -> UserScript:
    # Only here: reading a command of plain python needs no torch.
    from torch.distributed import run  # noqa: PLC0415

    parser = run.get_args_parser()
    try:
        told, _ = parser.parse_known_args(words)
    except SystemExit as cause:
        raise ValueError(f"torchrun would refuse {' '.join(words)}") from cause
    arguments = tuple(told.training_script_args)
    return UserScript(told.training_script, arguments, is_module=bool(told.module))
