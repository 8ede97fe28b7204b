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
from rover_kf.recommender import parallelism_memory
from rover_kf.recommender.communication_model import Network
from rover_kf.recommender.gpu_memory import Device
from rover_kf.recommender.parallelism_memory import Way
from rover_kf.recommender.profile import Trial
from rover_kf.recommender.size_evidence import GIB, line

ACCUMULATIONS = (1, 2, 4, 8, 16, 32)
MOST = 3
"""Proposals."""
GAIN = 0.95
"""Of the present time, that a faster way has to stay below."""


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """What ways are compared in."""

    device: Device
    trials: tuple[Trial, ...]
    network: Network
    processes: int
    nodes: int
    limit: float | None
    """Bytes of a device; None: not known, everything fits."""

    def bytes_of(self, way: Way) -> float:
        """Of one device."""
        return self.device.bytes_at(self._micro(way), way, self.processes)

    def seconds_of(self, way: Way) -> float:
        """Of a whole step; 0 if no step was timed."""
        real = [(float(one.batch), one.step_seconds) for one in self.trials if not one.faked]
        if not real:
            return 0.0
        constant, slope = line(real)
        alone = way.accumulation * (constant + slope * self._micro(way))
        if self.processes == 1:
            return alone
        ring = 2.0 * (self.processes - 1) / self.processes
        sent = parallelism_memory.sent(self.device.state, way, self.processes) / ring
        return self.network.step_seconds(
            alone, processes=self.processes, nodes=self.nodes, gradient_bytes=sent
        )

    def fits(self, way: Way) -> bool:
        """Whether a device has room for it."""
        return self.limit is None or self.bytes_of(way) <= self.limit

    def micro(self, way: Way) -> int:
        """Samples of a process in one micro-batch."""
        return math.ceil(self._micro(way))

    def _micro(self, way: Way) -> float:
        return math.ceil(self.device.batch / way.accumulation)


def propose(setting: Setting, present: Way | None = None) -> tuple[Proposal, ...]:
    """Ways that are better than the present one, best first.

    Args:
        setting: what they are compared in.
        present: plain DDP by default.
    """
    now = present or Way()
    fits, seconds = setting.fits(now), setting.seconds_of(now)
    found = []
    for way in _ways(setting):
        if way == now or not setting.fits(way):
            continue
        if fits and not (seconds and setting.seconds_of(way) < GAIN * seconds):
            continue
        found.append(way)
    found.sort(key=lambda way: (setting.seconds_of(way), _effort(way)))
    return tuple(_proposal(setting, way, now) for way in _unlike(found)[:MOST])


def _ways(setting: Setting) -> Iterator[Way]:
    many = setting.processes > 1
    strategies = parallelism_memory.STRATEGIES if many else (parallelism_memory.DDP,)
    for strategy, count, precision in itertools.product(
        strategies, ACCUMULATIONS, parallelism_memory.PRECISIONS
    ):
        pointless = precision == parallelism_memory.BF16_GRADIENTS and (
            not many or strategy not in {parallelism_memory.DDP, parallelism_memory.ZERO1}
        )
        if count <= max(1, setting.device.batch) and not pointless:
            yield Way(strategy, count, precision)


def _effort(way: Way) -> tuple[int, int, int]:
    """Changes to the script, the fewest first."""
    return (
        parallelism_memory.STRATEGIES.index(way.strategy),
        way.accumulation,
        parallelism_memory.PRECISIONS.index(way.precision),
    )


def _unlike(ways: list[Way]) -> list[Way]:
    """One of each strategy and precision: the first, which is the fastest."""
    kinds: dict[tuple[str, str], Way] = {}
    for way in ways:
        kinds.setdefault((way.strategy, way.precision), way)
    return list(kinds.values())


def _proposal(setting: Setting, way: Way, now: Way) -> Proposal:
    held, before = setting.bytes_of(way), setting.bytes_of(now)
    seconds, was = setting.seconds_of(way), setting.seconds_of(now)
    room = "" if setting.limit is None else f" of a device's {setting.limit / GIB:.2f} GiB"
    reason = "fits, and the present way does not" if not setting.fits(now) else "is faster"
    why = (
        f"{reason}: {held / GIB:.2f} GiB{room} where {now.strategy} {now.precision} takes "
        f"{before / GIB:.2f}; {seconds:.3f} s a step where it takes {was:.3f}"
    )
    return Proposal(
        strategy=way.strategy,
        accumulation=way.accumulation,
        precision=way.precision,
        batch=setting.micro(way),
        memory=held,
        step_seconds=seconds,
        fits=setting.fits(way),
        why=why,
    )
