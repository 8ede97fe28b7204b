# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What scripts/journaled.py wrote; pure but for reading it."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Collection, Iterable, Mapping


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Line:
    """One step or restore of one training process."""

    at: float
    """Monotonic seconds: one clock for all nodes of the test cluster, which nobody sets."""
    rank: int
    world: int
    verb: str
    """``stepped`` or ``restored``."""
    step: int
    digest: str
    """Of the weights."""
    source: str
    process: str
    """Which file it is from."""
    loss: float = 0.0
    """Mean of the rank's own samples of the step."""
    samples: int = 0


def read(folder: pathlib.Path) -> list[Line]:
    """All lines in order of time; one that is still being written is left out."""
    found = []
    for place in folder.glob("*.txt"):
        for text in place.read_text().splitlines(keepends=True):
            if text.endswith("\n"):
                at, rank, world, verb, step, digest, source, loss, samples = text.split()
                found.append(
                    Line(
                        float(at), int(rank), int(world), verb, int(step), digest, source,
                        place.stem, float(loss), int(samples),
                    )
                )  # fmt: skip
    return sorted(found)


def newest(lines: Iterable[Line], at: float) -> int:
    """The highest step that any rank had finished by then; 0 if none had."""
    return max((line.step for line in lines if line.verb == "stepped" and line.at <= at), default=0)


def losses(lines: Iterable[Line]) -> dict[int, float]:
    """Mean loss of each step's whole batch, as it was made last by all ranks of one world."""
    parts: dict[tuple[int, int], dict[int, Line]] = {}
    for line in lines:
        if line.verb == "stepped":
            parts.setdefault((line.step, line.world), {})[line.rank] = line
    whole = {key: found for key, found in parts.items() if len(found) == key[1]}
    newest = sorted(whole, key=lambda key: max(line.at for line in whole[key].values()))
    return {key[0]: _mean(whole[key].values()) for key in newest}


def _mean(lines: Collection[Line]) -> float:
    return sum(line.loss * line.samples for line in lines) / sum(line.samples for line in lines)


def other_bits(lines: Iterable[Line], expected: Mapping[int, str]) -> list[str]:
    """Steps, in words, whose weights are not those of the run that nothing happened to."""
    return sorted(
        {
            f"rank {line.rank} has other weights at step {line.step} ({line.verb}, {line.process})"
            for line in lines
            if line.step and line.digest != expected[line.step]
        }
    )
