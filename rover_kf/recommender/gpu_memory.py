# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Bytes of an accelerator's memory under each way to train in parallel, and the batch that fits.

With P bytes of parameters, G of gradients, O of optimizer state, L of the largest layer, A of
activations and K processes:

    ddp     P + G + O + A, and G once more in buckets where K > 1
    zero1   P + G + O / K + A, and G in buckets
    zero2   P + (G + O) / K + A, and L twice while it is gathered
    fsdp    (P + G + O) / K + A, and L twice (the one at work and the one ahead)
    lora    P at half size, and G and O of what is trained: a state with few gradients under ddp
    ps      P + G + A in a worker; a server holds its share of P + O
"""

from __future__ import annotations

import dataclasses
import math

from rover_kf.api.decisions import Quantity
from rover_kf.dry_run.messages import ModelState
from rover_kf.recommender import container_resources
from rover_kf.recommender.profile import Trial
from rover_kf.recommender.size_evidence import MIB, SizeEvidence, fit_line, quantify

DDP, ZERO1, ZERO2, FSDP = "ddp", "zero1", "zero2", "fsdp"
STRATEGIES = (DDP, ZERO1, ZERO2, FSDP)
FP32, BF16, BF16_GRADIENTS = "fp32", "bf16", "bf16-gradients"
PRECISIONS = (FP32, BF16_GRADIENTS, BF16)

ADAM_BYTES, MASTER_BYTES = 8, 4
"""Of a parameter: two moments in fp32; weights, and gradients, in fp32."""
BF16_ACTIVATIONS = 0.7
"""Of those in fp32: what normalisation, softmax and losses keep stays in fp32 under autocast."""
CONTEXT = 768 << 20
"""Of an accelerator's driver, kernels and communication buffers."""
FRAGMENTS = 1.08
"""What the allocator holds over what is used."""


@dataclasses.dataclass(frozen=True, slots=True)
class ParallelConfig:
    """A way to train in parallel."""

    strategy: str = DDP
    accumulation: int = 1
    precision: str = FP32


def state_from_parameters(parameters: float, *, trained: float | None = None) -> ModelState:
    """Return the state of a model of so many parameters, with Adam in fp32.

    Where fewer than all are trained (LoRA), the base is kept at two bytes a parameter.
    """
    live = parameters if trained is None else trained
    base = 0.0 if live >= parameters else 2.0 * (parameters - live)
    return ModelState(
        parameters=int(parameters),
        parameter_bytes=int(base + MASTER_BYTES * live),
        gradient_bytes=int(MASTER_BYTES * live),
        optimizer_bytes=int(ADAM_BYTES * live),
    )


def state_bytes(state: ModelState, config: ParallelConfig, processes: int) -> float:
    """Return bytes of one process of the world, without activations."""
    weights = state.parameter_bytes + state.buffer_bytes
    gradients, moments = float(state.gradient_bytes), float(state.optimizer_bytes)
    layer = 2.0 * state.largest_layer_bytes
    buckets = gradients if processes > 1 else 0.0
    if config.precision == BF16_GRADIENTS:
        buckets *= 1.5
    if config.strategy == ZERO1:
        return weights + gradients + moments / processes + buckets
    if config.strategy == ZERO2:
        return weights + (gradients + moments) / processes + layer
    if config.strategy == FSDP:
        return (weights + gradients + moments) / processes + layer
    return weights + gradients + moments + buckets


def server_bytes(state: ModelState, servers: int) -> float:
    """Bytes of one of several parameter servers."""
    return (state.parameter_bytes + state.optimizer_bytes) / max(1, servers)


def activation_bytes(slope: float, constant: float, batch: float, config: ParallelConfig) -> float:
    """Bytes of activations of one micro-batch, from a line through two batches in fp32."""
    share = BF16_ACTIVATIONS if config.precision == BF16 else 1.0
    return share * (constant + slope * batch)


def sent_bytes(state: ModelState, config: ParallelConfig, processes: int) -> float:
    """Bytes that each process sends in a step (a ring's share of gradients and weights)."""
    if processes <= 1:
        return 0.0
    ring = 2.0 * (processes - 1) / processes
    gradients = state.gradient_bytes * (0.5 if config.precision == BF16_GRADIENTS else 1.0)
    if config.strategy == FSDP:
        # Weights are gathered twice a micro-batch, gradients scattered once: each is half a ring.
        gathers = 2.0 * config.accumulation * state.parameter_bytes / 2.0
        return ring * (gathers + gradients / 2.0)
    if config.strategy == ZERO2:
        return ring * (gradients / 2.0 + state.parameter_bytes / 2.0)
    gathered = state.parameter_bytes / 2.0 if config.strategy == ZERO1 else 0.0
    return ring * (gradients + gathered)


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
        """Return bytes in use at a micro-batch, allocator and driver included, as predicted."""
        held = state_bytes(self.state, config, processes)
        acting = activation_bytes(self.slope, self.constant, batch, config)
        return FRAGMENTS * (held + max(acting, self.optimizer_workspace)) + CONTEXT

    def max_batch(self, limit: float, config: ParallelConfig, processes: int) -> int:
        """The largest micro-batch that fits; 0 if none does."""
        if self.bytes_at(0, config, processes) > limit:
            return 0
        free = (limit - CONTEXT) / FRAGMENTS - state_bytes(self.state, config, processes)
        each = activation_bytes(self.slope, 0.0, 1.0, config)
        fixed = activation_bytes(0.0, self.constant, 0.0, config)
        most = (free - fixed) / each if each > 0 else MAX_BATCH
        return math.floor(min(max(most, 0.0), MAX_BATCH) + 1e-9)


def fit_device(evidence: SizeEvidence) -> DeviceMemoryModel | None:
    """From the dry run; None if it did not count tensors."""
    state = evidence.state
    trials = [trial for trial in evidence.trials if trial.tensor_peak]
    if state is None or not trials:
        return None
    points = [(trial.batch, max(0.0, float(trial.forward_peak - state.total))) for trial in trials]
    constant, slope = fit_line(points)
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
        return quantify("accelerator_memory", target, bounds, "profile", why)
    parameters = evidence.job.signature.parameters
    if not parameters:
        return None
    trained = evidence.job.trained
    state = state_from_parameters(parameters, trained=trained)
    held = FRAGMENTS * state_bytes(state, ParallelConfig(), evidence.world) + CONTEXT
    why = f"16 bytes for each of {parameters:g} parameters (Adam, fp32); activations not known"
    if trained is not None and trained < parameters:
        why = (
            f"2 bytes for each of {parameters:g} parameters, and 16 for each of {trained:g} that "
            "are trained (Adam, fp32); activations not known"
        )
    bounds = (held, 2.5 * held)
    return quantify("accelerator_memory", FORMULA_MARGIN * held, bounds, "formula", why)


def recommend_batch(
    evidence: SizeEvidence, limit: float | None, host_limit: float | None
) -> Quantity | None:
    """Samples of one process a step; None if no dry run has seen a batch.

    The limit is that of an accelerator; without one the trainer container's bounds it.
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
        return quantify("batch", target, (min(least, target), target), "profile", why)
    high = 4.0 * own if most == math.inf else min(float(most), 64.0 * own)
    why = f"the script's own, which fits; below {least:g} a step is mostly overhead"
    return quantify("batch", float(own), (least, high), "profile", why)


def _host_max_batch(evidence: SizeEvidence, limit: float) -> float:
    own = evidence.trials[-1].batch
    sizes = (own, own // 2)
    here, half = (container_resources.predict_memory(evidence, size) for size in sizes)
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
