# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a job's owner allows the watcher; read from annotations elsewhere, only a value here."""

from __future__ import annotations

import dataclasses

from rover_kf.api.policy import PolicySections

OFF, RECOMMEND, AUTO = "off", "recommend", "auto"


@dataclasses.dataclass(frozen=True, slots=True)
class AutoscalingPolicy:
    """Bounds and pace of scaling one job.

    All sizes are Worker replicas; a Master is not counted and never scaled.
    """

    mode: str = OFF
    """``off``, ``recommend`` (says what it would do) or ``auto``."""
    min: int = 1
    max: int = 1
    sizes: tuple[int, ...] = ()
    """Allowed sizes; empty allows every one from min to max."""
    max_servers: int = 0
    """Parameter servers that a TFJob may have; 0: as many as it has."""
    window_seconds: float = 60.0
    """Length of a throughput window, as the coordinator measures."""
    cooldown_seconds: float = 300.0
    """Least time between two changes, five restarts if that is longer; a change that was verified
    may be followed at once."""
    restart_prior_seconds: float = 60.0
    """Cost of a change until the job has shown its own; Sia saw 25 to 250 s on clusters."""
    value_of_time: float = 2.0
    """What an hour less is worth, in replica-hours: 0 minds cost alone, 8 minds time."""
    deadline: float | None = None
    """Unix seconds by which the work shall be done; None: whenever it is."""
    weight: float = 1.0
    """What the job counts beside others where they share what there is not enough of."""
    hysteresis: float = 0.03
    """Share of the present cost that a change has to save beyond its own."""
    ban_seconds: float = 1800.0
    """How long a size that disappointed is not tried again."""
    join_seconds: float = 300.0
    """How long a changed world may take to form before the change is taken back."""
    settle_windows: int = 2
    """Windows at one size before anything is concluded from them."""
    sections: PolicySections = dataclasses.field(default_factory=PolicySections)
    """What else the job's owner allows, as it is stated."""

    @property
    def max_memory(self) -> int:
        """Bytes that a trainer's memory limit may be raised to; 0: it is never raised."""
        return self.sections.memory.max or 0

    @property
    def max_cpu(self) -> int:
        """Thousandths of a core that a pod's CPU limit may be raised to; 0: it is never raised."""
        return round(1000 * (self.sections.cpu.max or 0))

    def allowed(self) -> tuple[int, ...]:
        """Sizes that may be chosen, ascending; empty if the bounds contradict the sizes."""
        if not self.sizes:
            return tuple(range(self.min, self.max + 1))
        return tuple(size for size in sorted(set(self.sizes)) if self.min <= size <= self.max)

    def allowed_text(self) -> str:
        """The same for a person."""
        if self.sizes:
            return ",".join(map(str, self.allowed()))
        return f"{self.min}-{self.max}" if self.min < self.max else str(self.min)
