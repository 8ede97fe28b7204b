# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What scripts/counted.py and scripts/streamed.py wrote: which samples each step gave each rank."""

from __future__ import annotations

import base64
import collections
import json
import pathlib
from typing import Any

import numpy as np
import numpy.typing as npt

Line = dict[str, Any]
MORE_STEPS = 3
"""Of every rank, where a fault need not end a round."""


class SampleJournal:
    """Of all processes of a job; what was read once is not read again.

    Args:
        folder: that they write to, a file each.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._read: dict[pathlib.Path, int] = collections.defaultdict(int)
        self._begun: dict[pathlib.Path, float] = {}
        self._lines: list[Line] = []

    def lines(self) -> list[Line]:
        """Whole ones. Each has ``begun``, when its process had restored."""
        for path in sorted(self._folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read[path])
                whole, end, _ = file.read().rpartition(b"\n")
            self._read[path] += len(whole + end)
            for text in whole.splitlines():
                # Who was killed while it wrote has left a part of a line.
                if text.endswith(b"}"):
                    line = json.loads(text)
                    if "resumed" in line:
                        self._begun[path] = line["at"]
                    self._lines.append(line | {"begun": self._begun.get(path, 0.0)})
        return self._lines

    def steps(self) -> list[Line]:
        """Those that tell of a step."""
        return [line for line in self.lines() if "step" in line]

    def step(self) -> int:
        """The newest."""
        return max((line["step"] for line in self.steps()), default=0)

    def trains(self, size: int | None, since: float, *, anew: bool) -> bool:
        """Whether all ranks of a world have made steps since then.

        Args:
            size: ranks of the world; None: any number of them.
            since: monotonic seconds.
            anew: by processes that have begun since then; else several steps by any.
        """
        counted = "begun" if anew else "at"
        lines = [line for line in self.steps() if line[counted] > since]
        if not lines:
            return False
        newest = max(lines, key=lambda line: line["at"])
        world = newest["world"] if size is None else size
        again = [line for line in lines if _one_world(line, newest)]
        made = collections.Counter(line["rank"] for line in again if line["world"] == world)
        return all(made[rank] >= (1 if anew else MORE_STEPS) for rank in range(world))

    def surviving(self) -> dict[int, list[Line]]:
        """By step what each rank was given the last time that it was done."""
        newest: dict[int, Line] = {}
        for line in sorted(self.steps(), key=lambda line: line["at"]):
            newest[line["step"]] = line
        found: dict[int, dict[int, Line]] = {step: {} for step in sorted(newest)}
        for line in self.steps():
            by_rank = found[line["step"]]
            known = by_rank.get(line["rank"], line)
            if _one_world(line, newest[line["step"]]) and line["at"] >= known["at"]:
                by_rank[line["rank"]] = line
        return {step: list(by_rank.values()) for step, by_rank in found.items()}


def _one_world(line: Line, other: Line) -> bool:
    return (line["round"], line["world"]) == (other["round"], other["world"])


def counts(surviving: dict[int, list[Line]], name: str) -> npt.NDArray[np.int64]:
    """How often each sample was given, by its number.

    Args:
        surviving: lines by step.
        name: of the samples in a line.
    """
    parts = [
        np.frombuffer(base64.b64decode(line[name]), np.int32)
        for lines in surviving.values()
        for line in lines
    ]
    return np.bincount(np.concatenate(parts))
