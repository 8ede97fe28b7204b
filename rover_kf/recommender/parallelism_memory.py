# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Bytes of a device under each way to train in parallel, and what a step sends; pure formulas.

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

from rover_kf.recommender.profile import ModelState

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
    """The state of a model of which only the number of parameters is known, with Adam in fp32.

    Args:
        parameters: count.
        trained: count of those that are; fewer than all is LoRA or the like, whose base is kept at
            two bytes a parameter.
    """
    live = parameters if trained is None else trained
    base = 0.0 if live >= parameters else 2.0 * (parameters - live)
    return ModelState(
        parameters=int(parameters),
        parameter_bytes=int(base + MASTER_BYTES * live),
        gradient_bytes=int(MASTER_BYTES * live),
        buffer_bytes=0,
        optimizer_bytes=int(ADAM_BYTES * live),
    )


def state_bytes(state: ModelState, config: ParallelConfig, processes: int) -> float:
    """Bytes of one process beside activations.

    Args:
        state: one whole copy.
        config: to train.
        processes: of the world.
    """
    weights = state.parameter_bytes + state.buffer_bytes
    gradients, moments, layer = (
        float(state.gradient_bytes),
        float(state.optimizer_bytes),
        2.0 * state.largest_layer_bytes,
    )
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
    return ring * gradients + (
        ring * state.parameter_bytes / 2.0 if config.strategy == ZERO1 else 0.0
    )
