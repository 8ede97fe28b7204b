# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Marks: what each training process writes of its world and steps, and reading them again.

One file a process. Its first line is an object that says who writes; each other line is a step and
the Unix time at which it was finished. The script of the job imports this: standard library only.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import time


@dataclasses.dataclass(frozen=True, slots=True)
class Process:
    """A training process, as it says itself."""

    pod: str
    pid: int
    """As its container counts."""
    world: int
    """One number for all processes that were connected to each other, for no others."""
    size: int
    """Of that world."""
    rank: int
    resumed: int
    """The step that its state was of when it began."""


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """A step that was finished."""

    number: int
    at: float
    """Unix seconds."""


@dataclasses.dataclass(frozen=True, slots=True)
class Track:
    """A process and its steps, in order."""

    process: Process
    steps: tuple[Step, ...]


class Marks:
    """Writes one process' file.

    Args:
        folder: of all the job's processes; made where it is not there.
        process: who writes.
    """

    def __init__(self, folder: pathlib.Path, process: Process) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{process.pod}-{process.world}-{process.rank}-{process.pid}.marks"
        # One write a line: whoever reads meanwhile sees whole lines but for the last.
        self._file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._line(json.dumps(dataclasses.asdict(process)))

    def step(self, number: int) -> None:
        """A step was finished now."""
        self._line(f"{number} {time.time():.6f}")

    def _line(self, text: str) -> None:
        os.write(self._file, f"{text}\n".encode())


def read(folder: pathlib.Path) -> tuple[Track, ...]:
    """All that was written so far."""
    found = [parse(path.read_text()) for path in sorted(folder.glob("*.marks"))]
    return tuple(track for track in found if track is not None)


def parse(text: str) -> Track | None:
    """One file; None while its first line is not whole."""
    head, *lines = text.split("\n")[:-1] or [""]
    if not head:
        return None
    pairs = [line.split() for line in lines]
    steps = tuple(Step(int(number), float(at)) for number, at in pairs)
    return Track(Process(**json.loads(head)), steps)
