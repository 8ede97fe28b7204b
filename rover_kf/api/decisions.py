# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Decisions as values: a size before the run, a number of replicas during it."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Quantity:
    """One recommended number with its interval and where it comes from."""

    name: str
    """``replicas``, ``cpu`` (cores), ``memory``, ``arena`` (bytes), ``replica`` (of those), …"""
    target: float
    lower: float
    upper: float
    unit: str
    basis: str
    """``history``, ``profile``, ``formula``, ``manifest`` or ``default``."""
    effective_samples: float
    """How many independent observations stand behind it (weights summed)."""
    why: str
    """One sentence for a person."""


@dataclasses.dataclass(frozen=True, slots=True)
class Recommendation:
    """Sizes for a job that has not started yet."""

    job: str
    quantities: tuple[Quantity, ...]

    def get(self, name: str) -> Quantity | None:
        """The quantity of that name; None if nothing could be said about it."""
        return next((item for item in self.quantities if item.name == name), None)


@dataclasses.dataclass(frozen=True, slots=True)
class ScaleDecision:
    """What the watcher decided in one window, also when it is to stay."""

    at: float
    action: str
    """``stay``, ``scale`` or ``roll_back``."""
    current: int
    """Worker replicas now."""
    target: int
    """Worker replicas wanted; equals current for ``stay``."""
    reason: str
    """One sentence with the numbers that decided."""
    measured: float
    """Samples per second now."""
    predicted: float
    """Samples per second at target, by the model."""
    restart_seconds: float
    """Cost of the change that was reckoned with."""
    applied: bool = False
    """Whether replicas were patched (mode auto)."""

    @property
    def predicted_gain(self) -> float:
        """Predicted over measured throughput; 1 means no change."""
        return self.predicted / self.measured if self.measured else 1.0
