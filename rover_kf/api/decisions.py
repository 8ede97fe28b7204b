# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Decisions as values: a size before the run, a number of replicas during it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from rover_kf.system.html_tables import NotebookTable


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
class Cost:
    """What the recommended sizes cost by the user's price table."""

    currency: str
    per_hour: float
    lower: float
    """Per hour, at the lower bounds of the sizes."""
    upper: float
    hours: float | None
    """That the run takes; None: not known."""
    why: str
    """One sentence: what is paid for, and where the hours come from."""

    @property
    def total(self) -> float | None:
        """Of the whole run; None where its length is not known."""
        return None if self.hours is None else self.per_hour * self.hours


@dataclasses.dataclass(frozen=True, slots=True)
class Proposal:
    """Another way to train in parallel that fits where the present one does not, or is faster."""

    strategy: str
    """``ddp``, ``zero1``, ``zero2`` or ``fsdp``."""
    accumulation: int
    """Micro-batches that a step is made of."""
    precision: str
    """``fp32``, ``bf16`` (autocast) or ``bf16-gradients`` (only they are sent so)."""
    batch: int
    """Samples of one process in one micro-batch."""
    memory: float
    """Bytes of one device, predicted."""
    step_seconds: float
    """Predicted, of a whole step; 0: not known."""
    fits: bool
    why: str
    """One sentence with the present way's memory and time beside it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Recommendation(NotebookTable):
    """Sizes for a job that has not started yet."""

    job: str
    quantities: tuple[Quantity, ...]
    cost: Cost | None = None
    """By the price table, if one was given."""
    proposals: tuple[Proposal, ...] = ()
    """Best first; none where the present way fits and nothing is predicted to be faster."""
    notes: tuple[str, ...] = ()
    """What could not be looked at, one sentence each."""

    def get(self, name: str) -> Quantity | None:
        """The quantity of that name; None if nothing could be said about it."""
        return next((item for item in self.quantities if item.name == name), None)

    def _html_title(self) -> str:
        return f"sizes for {self.job}"

    def _html_header(self) -> Sequence[str]:
        return ("size", "target", "from", "to", "unit", "basis", "why")

    def _html_rows(self) -> Iterable[Sequence[object]]:
        for one in self.quantities:
            numbers = (f"{value:,.4g}" for value in (one.target, one.lower, one.upper))
            yield (one.name, *numbers, one.unit, one.basis, one.why)
        if self.cost is not None:
            hour = (f"{getattr(self.cost, part):.4g}" for part in ("per_hour", "lower", "upper"))
            yield ("cost", *hour, f"{self.cost.currency}/h".lstrip("/"), "prices", self.cost.why)
        for way in self.proposals:
            yield ("or", f"{way.strategy} {way.precision}", "", "", "", "formula", way.why)
        for note in self.notes:
            yield ("note", "", "", "", "", "", note)


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
    windows: int = 0
    """That were measured at the present size and decided."""
    seconds_left: float = 0.0
    """Of work at the present throughput, as far as the trainer tells; else an assumption."""
    allowed: str = ""
    """Sizes that the policy allows, such as ``1-4`` or ``1,2,4``."""
    banned: str = ""
    """Sizes that have disappointed and are not tried now."""
    bound: str = ""
    """What the cluster let the job have no more of, by name; empty: nothing."""
    servers: int = 0
    """Parameter servers now; 0: the job has none. Throughput is then told in steps a second."""
    target_servers: int = 0

    @property
    def predicted_gain(self) -> float:
        """Predicted over measured throughput; 1 means no change."""
        return self.predicted / self.measured if self.measured else 1.0

    @property
    def current_size(self) -> tuple[int, int]:
        """Workers and parameter servers now."""
        return self.current, self.servers

    @property
    def target_size(self) -> tuple[int, int]:
        """The same, wanted."""
        return self.target, self.target_servers

    @property
    def change(self) -> str:
        """For a person, such as ``2 -> 3``, or ``PS 1 -> 2``; the number alone to stay."""
        if self.current_size == self.target_size:
            return f"{self.current}"
        if self.servers != self.target_servers:
            return f"PS {self.servers} -> {self.target_servers}"
        return f"{'Worker ' if self.servers else ''}{self.current} -> {self.target}"
