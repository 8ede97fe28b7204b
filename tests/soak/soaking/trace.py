# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What every rank did in every round, by its own word; read from the logs as they grow."""

from __future__ import annotations

import dataclasses
import pathlib

from rover_kf.api import names

STALL_SECONDS = 1.0
"""A step that took longer than this was held up: its time is not productive."""


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One line of scripts/told.py."""

    what: str
    step: int
    rank: int
    world_size: int
    round: int
    process: int
    at: float
    """Unix seconds."""
    source: str


def parse(text: str) -> Line | None:
    """The line, or None if it is something else that the container printed."""
    words = text.split()
    if len(words) != 9 or words[0] != "soak":
        return None
    step, rank, world_size, number, process = map(int, words[2:7])
    return Line(words[1], step, rank, world_size, number, process, float(words[7]), words[8])


@dataclasses.dataclass(slots=True)
class Round:
    """What is kept of a round."""

    number: int
    world_size: int
    restored: dict[int, Line] = dataclasses.field(default_factory=dict)
    """By rank."""
    newest: dict[int, Line] = dataclasses.field(default_factory=dict)
    """Last finished step, by rank."""
    marked: dict[int, Line] = dataclasses.field(default_factory=dict)
    """First step that was finished after the mark, by rank."""

    @property
    def step(self) -> int:
        """Newest step that any rank finished; 0 if none."""
        return max((line.step for line in self.newest.values()), default=0)

    @property
    def stepping(self) -> bool:
        """Whether every rank has finished a step since the mark."""
        return len(self.marked) == self.world_size


class Trace:
    """The rounds of one job so far; its size does not grow with the steps.

    Args:
        logs: folder with a folder for each pod.
    """

    def __init__(self, logs: pathlib.Path) -> None:
        self._logs = logs
        self._offsets: dict[pathlib.Path, int] = {}
        self._mark = 0.0
        self._best = 0
        self.rounds: dict[int, Round] = {}
        self.productive_seconds = 0.0
        """In which rank 0 went from one step to the next, and that one was new."""

    @property
    def current(self) -> Round | None:
        """The newest round that has told anything."""
        return self.rounds[max(self.rounds)] if self.rounds else None

    def mark(self, at: float) -> None:
        """Forget which ranks have stepped; only steps after ``at`` count from now on."""
        self._mark = at
        for known in self.rounds.values():
            known.marked.clear()

    def read(self) -> Round | None:
        """Take in what is new; the newest round."""
        for path in sorted(self._logs.glob(f"*/{names.PYTORCH_CONTAINER}.log")):
            begin = self._offsets.get(path, 0)
            if path.stat().st_size > begin:
                with path.open("rb") as file:
                    file.seek(begin)
                    data = file.read()
                end = data.rfind(b"\n") + 1
                self._offsets[path] = begin + end
                for text in data[:end].decode(errors="replace").splitlines():
                    line = parse(text)
                    if line is not None:
                        self.take(line)
        return self.current

    def take(self, line: Line) -> None:
        """Take in one line."""
        known = self.rounds.setdefault(line.round, Round(line.round, line.world_size))
        if line.what == "restored":
            known.restored[line.rank] = line
            return
        if line.rank == 0:
            self._count(known.newest.get(0), line)
        known.newest[line.rank] = line
        if line.at > self._mark:
            known.marked.setdefault(line.rank, line)

    def _count(self, before: Line | None, line: Line) -> None:
        if before is not None and line.step > self._best:
            took = line.at - before.at
            self.productive_seconds += took if took <= STALL_SECONDS else 0.0
        self._best = max(self._best, line.step)
