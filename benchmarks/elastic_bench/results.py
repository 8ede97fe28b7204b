# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The results file: what was measured so far, and the figures that are made of it."""

from __future__ import annotations

import json
import pathlib
import statistics
import threading
from typing import Any

Sample = dict[str, float]


class Results:
    """Samples by name and side, kept in a file that is written after each.

    Args:
        path: the file; figures and samples lie in it together.
        settings: stated in it.
    """

    def __init__(self, path: pathlib.Path, settings: dict[str, Any]) -> None:
        self._path, self._settings = path, settings
        found = json.loads(path.read_text()) if path.exists() else {}
        self._samples: dict[str, dict[str, list[Sample]]] = found.get("samples", {})
        self._adding = threading.Lock()

    def clear(self, name: str, side: str) -> None:
        """Forget what was measured of it."""
        sides = self._samples.get(name, {})
        sides.pop(side, None)
        if not sides:
            self._samples.pop(name, None)

    def count(self, name: str, side: str) -> int:
        """How often it was measured."""
        return len(self._samples.get(name, {}).get(side, []))

    def add(self, name: str, side: str, sample: Sample) -> None:
        """Take one in and write the file."""
        with self._adding:
            self._samples.setdefault(name, {}).setdefault(side, []).append(sample)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            beside = self._path.with_suffix(".part")
            beside.write_text(json.dumps(self.report(), indent=1) + "\n")
            beside.replace(self._path)

    def report(self) -> dict[str, Any]:
        """What the file holds."""
        own = ("standalone", "goodput")
        actions = {name: sides for name, sides in self._samples.items() if name not in own}
        report: dict[str, Any] = {name: self._single(name) for name in own}
        report["actions"] = {name: figures(sides) for name, sides in actions.items()}
        return {**report, "settings": self._settings, "samples": self._samples}

    def _single(self, name: str) -> dict[str, float]:
        sides = self._samples.get(name, {})
        return {side: _median(samples, "value") for side, samples in sides.items() if samples}


def figures(sides: dict[str, list[Sample]]) -> dict[str, float]:
    """One action's medians, ``SIDE_seconds`` and so on, and how many repeats every side has."""
    found: dict[str, float] = {}
    for side, samples in sides.items():
        for key in sorted({key for sample in samples for key in sample}):
            found[f"{side}_{key}"] = _median(samples, key)
    return {**found, "repeats": min(len(samples) for samples in sides.values())}


def _median(samples: list[Sample], key: str) -> float:
    return round(statistics.median(sample[key] for sample in samples if key in sample), 3)
