# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Another way to train in parallel, where the present one does not fit or another is faster; pure.

Every way is priced by the same two models as the sizes: bytes of a device by parallel.py's formulas
around what a dry run counted, seconds by the dry run's line over the batch and the network's terms.
That bf16 computes faster is not reckoned with: it is not known of a device that was not tried.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

from rover_kf.api.decisions import Proposal
from rover_kf.recommender import gpu_memory
from rover_kf.recommender.communication_model import CommunicationModel
from rover_kf.recommender.gpu_memory import DeviceMemoryModel, ParallelConfig
from rover_kf.recommender.profile import Trial
from rover_kf.recommender.size_evidence import GIB, fit_line

ACCUMULATIONS = (1, 2, 4, 8, 16, 32)
MAX_PROPOSALS = 3
MAX_TIME_RATIO = 0.95
"""Of the present time, that a faster way has to stay below."""


@dataclasses.dataclass(frozen=True, slots=True)
class ParallelismContext:
    """What ways are compared in."""

    device: DeviceMemoryModel
    trials: tuple[Trial, ...]
    network: CommunicationModel
    processes: int
    nodes: int
    limit: float | None
    """Bytes of a device; None: not known, everything fits."""

    def bytes_of(self, config: ParallelConfig) -> float:
        """Of one device."""
        return self.device.bytes_at(self.micro_batch(config), config, self.processes)

    def seconds_of(self, config: ParallelConfig) -> float:
        """Of a whole step; 0 if no step was timed."""
        real = [(float(one.batch), one.step_seconds) for one in self.trials if not one.faked]
        if not real:
            return 0.0
        constant, slope = fit_line(real)
        alone = config.accumulation * (constant + slope * self.micro_batch(config))
        if self.processes == 1:
            return alone
        ring = 2.0 * (self.processes - 1) / self.processes
        sent = gpu_memory.sent_bytes(self.device.state, config, self.processes) / ring
        return self.network.step_seconds(
            alone, processes=self.processes, nodes=self.nodes, gradient_bytes=sent
        )

    def fits(self, config: ParallelConfig) -> bool:
        """Whether a device has room for it."""
        return self.limit is None or self.bytes_of(config) <= self.limit

    def micro_batch(self, config: ParallelConfig) -> int:
        """Samples of a process in one micro-batch."""
        return math.ceil(self.device.batch / config.accumulation)


def propose_configs(context: ParallelismContext) -> tuple[Proposal, ...]:
    """Ways that are better than plain DDP, best first."""
    now = ParallelConfig()
    fits, seconds = context.fits(now), context.seconds_of(now)
    found = []
    for way in _candidate_configs(context):
        if way == now or not context.fits(way):
            continue
        if fits and not (seconds and context.seconds_of(way) < MAX_TIME_RATIO * seconds):
            continue
        found.append(way)
    found.sort(key=lambda way: (context.seconds_of(way), _script_changes(way)))
    return tuple(_proposal(context, way, now) for way in _distinct(found)[:MAX_PROPOSALS])


def _candidate_configs(context: ParallelismContext) -> Iterator[ParallelConfig]:
    many = context.processes > 1
    strategies = gpu_memory.STRATEGIES if many else (gpu_memory.DDP,)
    for strategy, count, precision in itertools.product(
        strategies, ACCUMULATIONS, gpu_memory.PRECISIONS
    ):
        pointless = precision == gpu_memory.BF16_GRADIENTS and (
            not many or strategy not in {gpu_memory.DDP, gpu_memory.ZERO1}
        )
        if count <= max(1, context.device.batch) and not pointless:
            yield ParallelConfig(strategy, count, precision)


def _script_changes(config: ParallelConfig) -> tuple[int, int, int]:
    """Changes to the script, the fewest first."""
    return (
        gpu_memory.STRATEGIES.index(config.strategy),
        config.accumulation,
        gpu_memory.PRECISIONS.index(config.precision),
    )


def _distinct(ways: list[ParallelConfig]) -> list[ParallelConfig]:
    """One of each strategy and precision: the first, which is the fastest."""
    kinds: dict[tuple[str, str], ParallelConfig] = {}
    for way in ways:
        kinds.setdefault((way.strategy, way.precision), way)
    return list(kinds.values())


def _proposal(context: ParallelismContext, config: ParallelConfig, now: ParallelConfig) -> Proposal:
    held, before = context.bytes_of(config), context.bytes_of(now)
    seconds, was = context.seconds_of(config), context.seconds_of(now)
    room = "" if context.limit is None else f" of a device's {context.limit / GIB:.2f} GiB"
    reason = "fits, and the present way does not" if not context.fits(now) else "is faster"
    why = (
        f"{reason}: {held / GIB:.2f} GiB{room} where {now.strategy} {now.precision} takes "
        f"{before / GIB:.2f}; {seconds:.3f} s a step where it takes {was:.3f}"
    )
    return Proposal(
        strategy=config.strategy,
        accumulation=config.accumulation,
        precision=config.precision,
        batch=context.micro_batch(config),
        memory=held,
        step_seconds=seconds,
        fits=context.fits(config),
        why=why,
    )
