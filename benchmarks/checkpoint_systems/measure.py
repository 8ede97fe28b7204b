# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One system's figures from one session; figures of several sessions become the report's."""

from __future__ import annotations

import dataclasses
import pathlib
import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.checkpoint_systems import memory
from benchmarks.checkpoint_systems.session import Session

LEAST_STEPS, MOST_STEPS = 4, 12
LOADS = 24
"""Saves at the highest rate, for the account of saves."""


@dataclasses.dataclass(frozen=True)
class Size:
    """Of a state, and how often its figures are taken in a session."""

    mebibytes: int
    tensors: int
    warm: int
    repeats: int
    persists: int
    restores: int


@dataclasses.dataclass(frozen=True)
class Course:
    """What one session goes through."""

    floors: Session
    size: Size
    folder: pathlib.Path
    compute_ms: float
    """Of each step."""
    counted: bool
    """Whether to save at the highest rate, too, and count what becomes of it."""


@dataclasses.dataclass
class Figures:
    """Everything that was measured of a system, in milliseconds unless named otherwise."""

    first: list[float] = dataclasses.field(default_factory=list)
    warm: list[float] = dataclasses.field(default_factory=list)
    floor: list[float] = dataclasses.field(default_factory=list)
    """A flat copy just before each warm save."""
    added: list[float] = dataclasses.field(default_factory=list)
    """What the step after a save took longer than the one before it."""
    durable: list[float] = dataclasses.field(default_factory=list)
    capped: list[float] = dataclasses.field(default_factory=list)
    restore: list[float] = dataclasses.field(default_factory=list)
    sham: list[float] = dataclasses.field(default_factory=list)
    beside: list[float] = dataclasses.field(default_factory=list)
    """Steps while a save went to storage."""
    peak_mebibytes: list[float] = dataclasses.field(default_factory=list)
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    skipped: str = ""

    def report(self, loop_mebibytes: float = 0.0) -> dict[str, Any]:
        """As it stands in the file.

        Args:
            loop_mebibytes: of memory that the loop takes by itself, without checkpoints.
        """
        if self.skipped or not self.restore:
            return {"skipped": self.skipped or "not measured"}
        ratios = [warm / floor for warm, floor in zip(self.warm, self.floor, strict=True)]
        return {
            "first_ms": _median(self.first),
            "warm_ms": _median(self.warm),
            "warm_p95_ms": _rounded(_p95(self.warm)),
            "warm_over_floor": _rounded(statistics.median(ratios), 3),
            "step_added_ms": _median(self.added),
            "durable_ms": _median(self.durable),
            **({"capped_ms": _median(self.capped)} if self.capped else {}),
            "restore_ms": _median(self.restore),
            "step_inflation": _longer(statistics.median, self.beside, self.sham),
            "step_inflation_mean": _longer(statistics.mean, self.beside, self.sham),
            "steps_beside": len(self.beside),
            "peak_memory_mib": _rounded(max(self.peak_mebibytes) - loop_mebibytes),
            **self.facts,
        }


def take(session: Session, course: Course, figures: Figures) -> None:
    """Run a session's whole course and add to the figures.

    Raises:
        Failed: the system could not go on.
    """
    size, compute_ms = course.size, course.compute_ms
    made = session.ask(
        "prepare", folder=str(course.folder), mebibytes=size.mebibytes, tensors=size.tensors
    )
    figures.first.append(session.ask("save", compute_ms=compute_ms)["ms"])
    session.ask("settle")
    _take_warm(session, course, figures)
    for _ in range(size.repeats):
        figures.durable.append(session.ask("durable")["ms"])
        if capped := session.ask("capped"):
            figures.capped.append(capped["ms"])
    for _ in range(size.persists):
        _take_persist(session, compute_ms, figures)
    with memory.Watch(session.pid) as watch:
        session.ask("durable")
    figures.peak_mebibytes.append(watch.mebibytes - made["mebibytes"])
    figures.facts |= session.ask("held")
    if course.counted:
        figures.facts |= session.ask("many", count=LOADS)
    for _ in range(size.restores):
        restored = session.ask("restore")
        figures.restore.append(restored["ms"])
        figures.facts["restored_views"] = restored["views"]
        if not restored["equal"]:
            figures.skipped = "what came back is not what was saved"


def loop_mebibytes(session: Session, course: Course) -> float:
    """What the same loop without checkpoints comes to have of memory while it trains."""
    size, compute_ms = course.size, course.compute_ms
    made = session.ask(
        "prepare", folder=str(course.folder), mebibytes=size.mebibytes, tensors=size.tensors
    )
    session.ask("sham", compute_ms=compute_ms, count=LEAST_STEPS)
    with memory.Watch(session.pid) as watch:
        session.ask("durable")
        session.ask("sham", compute_ms=compute_ms, count=LEAST_STEPS)
    return max(_rounded(watch.mebibytes - made["mebibytes"]), 0.0)


def _take_persist(session: Session, compute_ms: float, figures: Figures) -> None:
    """Steps while a save goes to storage, between two lots of steps with nothing beside them."""
    sham = session.ask("sham", compute_ms=compute_ms, count=LEAST_STEPS)["steps_ms"]
    beside = session.ask("persist", compute_ms=compute_ms, least=LEAST_STEPS, most=MOST_STEPS)
    session.ask("settle")
    sham += session.ask("sham", compute_ms=compute_ms, count=LEAST_STEPS)["steps_ms"]
    figures.sham += sham
    figures.beside += beside["steps_ms"]


def _take_warm(session: Session, course: Course, figures: Figures) -> None:
    for _ in range(course.size.warm):
        floor = course.floors.ask("bare")["ms"]
        before = session.ask("step", compute_ms=course.compute_ms)["step_ms"]
        saved = session.ask("save", compute_ms=course.compute_ms)
        session.ask("settle")
        figures.floor.append(floor)
        figures.warm.append(saved["ms"])
        figures.added.append(saved["step_ms"] - before)


def _longer(of: Callable[[list[float]], float], times: list[float], than: list[float]) -> float:
    return _rounded(of(times) / of(than) - 1, 3)


def _median(values: list[float]) -> float:
    return _rounded(statistics.median(values))


def _p95(values: list[float]) -> float:
    return (
        statistics.quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]
    )


def _rounded(value: float, digits: int = 1) -> float:
    return round(value, digits)
