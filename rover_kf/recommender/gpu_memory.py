# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Bytes of an accelerator's memory, and the batch that fits beside the model."""

from __future__ import annotations

import dataclasses
import math

from rover_kf.api.decisions import Quantity
from rover_kf.recommender import host_memory, parallelism_memory
from rover_kf.recommender.parallelism_memory import CONTEXT, FRAGMENTS, ParallelConfig
from rover_kf.recommender.profile import ModelState, Trial
from rover_kf.recommender.size_evidence import MIB, SizeEvidence, fit_line, from_single

DRY_MARGIN, FORMULA_MARGIN = 1.10, 1.25
MAX_BATCH = float(1 << 30)


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceMemoryModel:
    """What one device holds, as a line over the batch."""

    state: ModelState
    constant: float
    """Bytes of activations and workspace that no sample adds to."""
    slope: float
    """Bytes of activations a sample."""
    batch: int
    """The script's own, of one process."""
    optimizer_workspace: float = 0.0
    """Bytes that the optimizer's step needs for a moment, when activations are gone."""

    def bytes_at(self, batch: float, config: ParallelConfig, processes: int) -> float:
        """Predicted bytes in use, allocator and driver included.

        Args:
            batch: samples of one micro-batch.
            config: to train.
            processes: of the world.
        """
        held = parallelism_memory.state_bytes(self.state, config, processes)
        acting = parallelism_memory.activation_bytes(self.slope, self.constant, batch, config)
        return FRAGMENTS * (held + max(acting, self.optimizer_workspace)) + CONTEXT

    def max_batch(self, limit: float, config: ParallelConfig, processes: int) -> int:
        """The largest micro-batch that fits; 0 if none does."""
        if self.bytes_at(0, config, processes) > limit:
            return 0
        free = (limit - CONTEXT) / FRAGMENTS - parallelism_memory.state_bytes(
            self.state, config, processes
        )
        each = parallelism_memory.activation_bytes(self.slope, 0.0, 1.0, config)
        fixed = parallelism_memory.activation_bytes(0.0, self.constant, 0.0, config)
        most = (free - fixed) / each if each > 0 else MAX_BATCH
        return math.floor(min(max(most, 0.0), MAX_BATCH) + 1e-9)


def fit_device(evidence: SizeEvidence) -> DeviceMemoryModel | None:
    """From the dry run; None if it did not count tensors."""
    state = evidence.state
    trials = [trial for trial in evidence.trials if trial.tensor_peak]
    if state is None or not trials:
        return None
    constant, slope = fit_line([(trial.batch, _activation_bytes(trial, state)) for trial in trials])
    stepping = max(0.0, float(max(trial.update_peak for trial in trials) - state.total))
    return DeviceMemoryModel(state, constant, slope, trials[-1].batch, stepping)


def predict_memory(evidence: SizeEvidence) -> Quantity | None:
    """Bytes of one accelerator for the present batch; None where nothing tells of the model."""
    found = fit_device(evidence)
    if found is not None:
        held = found.bytes_at(found.batch, ParallelConfig(), evidence.world)
        target = DRY_MARGIN * held
        why = (
            f"{found.state.total / MIB:.0f} MiB of state and {found.slope / MIB:.2f} MiB of "
            f"activations a sample at batch {found.batch}, counted in a dry run, with driver, "
            "allocator and 10 %"
        )
        bounds = (0.9 * held, 1.5 * 0.9 * held)
        return from_single("accelerator_memory", target, bounds, "profile", why)
    parameters = evidence.job.signature.parameters
    if not parameters:
        return None
    trained = evidence.job.trained
    state = parallelism_memory.state_from_parameters(parameters, trained=trained)
    held = (
        FRAGMENTS * parallelism_memory.state_bytes(state, ParallelConfig(), evidence.world)
        + CONTEXT
    )
    why = f"16 bytes for each of {parameters:g} parameters (Adam, fp32); activations not known"
    if trained is not None and trained < parameters:
        why = (
            f"2 bytes for each of {parameters:g} parameters, and 16 for each of {trained:g} that "
            "are trained (Adam, fp32); activations not known"
        )
    bounds = (held, 2.5 * held)
    return from_single("accelerator_memory", FORMULA_MARGIN * held, bounds, "formula", why)


def recommend_batch(
    evidence: SizeEvidence, limit: float | None, host_limit: float | None
) -> Quantity | None:
    """Samples of one process a step; None if no dry run has seen a batch.

    Args:
        evidence: what is known.
        limit: bytes of an accelerator; None: not known, or there is none.
        host_limit: bytes of the trainer container, that bound it where there is no accelerator.
    """
    trials = evidence.trials
    if not trials or not trials[-1].batch:
        return None
    own, most = trials[-1].batch, math.inf
    found = fit_device(evidence)
    if limit is not None and found is not None:
        most = found.max_batch(limit, ParallelConfig(), evidence.world)
    elif host_limit is not None and not evidence.job.signature.accelerators:
        most = _host_max_batch(evidence, host_limit)
    least = float(min(own, _knee(trials)))
    if most < own:
        target = float(max(1, most))
        why = f"the largest that fits beside the model; the script's own {own} does not"
        return from_single("batch", target, (min(least, target), target), "profile", why)
    high = 4.0 * own if most == math.inf else min(float(most), 64.0 * own)
    why = f"the script's own, which fits; below {least:g} a step is mostly overhead"
    return from_single("batch", float(own), (least, high), "profile", why)


def _activation_bytes(trial: Trial, state: ModelState) -> float:
    return max(0.0, float(trial.forward_peak - state.total))


def _host_max_batch(evidence: SizeEvidence, limit: float) -> float:
    own = evidence.trials[-1].batch
    here, half = (
        host_memory.predict_memory(evidence, own),
        host_memory.predict_memory(evidence, own // 2),
    )
    if here is None or half is None or here.target <= limit:
        return math.inf
    each = (here.target - half.target) / max(1, own - own // 2)
    return max(1.0, math.floor(own - (here.target - limit) / each)) if each > 0 else 1.0


def _knee(trials: tuple[Trial, ...]) -> float:
    """The batch at which half of a step is what every step costs, whatever its batch."""
    real = [(float(trial.batch), trial.step_seconds) for trial in trials if not trial.faked]
    if len(real) < 2:  # noqa: PLR2004 - a line needs two
        return 1.0
    constant, slope = fit_line(real)
    return max(1.0, math.ceil(constant / slope)) if slope else 1.0
