# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a rehearsal is told and what it tells; JSON files between two processes."""

from __future__ import annotations

import dataclasses
import json
import pathlib

WARM_UP = 2
"""Steps whose times do not count: caches, allocators and lazy initialisation."""


@dataclasses.dataclass(frozen=True)
class DryRunRequest:
    """One run of a script."""

    command: tuple[str, ...]
    """As in the container: python or torchrun, the script, its arguments."""
    result: str
    """File that the finding is written to."""
    steps: int
    """Optimizer steps that are timed at least, beside WARM_UP."""
    batch_factor: float = 1.0
    """Every DataLoader's batch is multiplied by it."""
    fake: bool = False
    """Compute shapes instead of numbers: hardly any memory or time, but not every script can."""
    min_seconds: float = 1.0
    """Steps are timed for so long at least: a median of few milliseconds says little."""


@dataclasses.dataclass(frozen=True)
class ModelState:
    """Bytes of one whole copy of a model and its optimizer."""

    parameters: int = 0
    """Count."""
    parameter_bytes: int = 0
    gradient_bytes: int = 0
    """Of what is trained."""
    buffer_bytes: int = 0
    optimizer_bytes: int = 0
    largest_layer_bytes: int = 0
    """Parameters of the largest module that has some of its own."""
    optimizer: str = ""
    copy_seconds: float = 0.0
    """Of parameters, buffers and optimizer state, in memory."""

    @property
    def snapshot_bytes(self) -> int:
        """What a checkpoint saves."""
        return self.parameter_bytes + self.buffer_bytes + self.optimizer_bytes

    @property
    def total(self) -> int:
        """What a process holds of it while it trains."""
        return self.snapshot_bytes + self.gradient_bytes


@dataclasses.dataclass(frozen=True)
class TimedSteps:
    """What steps of one process showed at one batch; zeros where nothing was seen."""

    batch: int = 0
    """Samples a step."""
    step_seconds: float = 0.0
    """Median over the timed ones."""
    wait_seconds: float = 0.0
    """Of it, waited for data loaders (mean)."""
    cores: float = 0.0
    """Kept busy by the process and its loaders' workers while steps were timed."""
    forward_peak: int = 0
    """Bytes of parameters, gradients, optimizer state, batch and activations at the worst of
    forward and backward, as an accelerator would hold them; 0: not measured."""
    update_peak: int = 0
    """The same of the optimizer's step, when activations are gone."""


@dataclasses.dataclass(frozen=True)
class DryRunResult(TimedSteps):
    """What the steps showed, and of what model."""

    steps: int = 0
    """Optimizer steps that were made."""
    loader_workers: int = 0
    state: ModelState = dataclasses.field(default_factory=ModelState)
    error: str = ""
    """Why the script ended before its steps were made; empty: it did not."""


def write(path: str, value: DryRunRequest | DryRunResult) -> None:
    """Write the value as JSON."""
    pathlib.Path(path).write_text(json.dumps(dataclasses.asdict(value)), encoding="utf-8")


def read_request(path: str) -> DryRunRequest:
    """Read what write() wrote."""
    told = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    return DryRunRequest(**{**told, "command": tuple(told["command"])})


def read_result(path: str) -> DryRunResult:
    """Read what write() wrote."""
    told = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    return DryRunResult(**{**told, "state": ModelState(**told["state"])})
