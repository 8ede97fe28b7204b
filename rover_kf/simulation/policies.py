# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Policies for one job: ours as production runs it, and those that it is compared with.

All see the same windows and begin at the fewest replicas (but static and oracle). The others may
change every PACE seconds, ours when its own rule lets it. Other systems' laws of a step are as they
state them.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from scipy import optimize

from rover_kf.scaling.decide import current_windows, decide
from rover_kf.scaling.policy import AUTO, AutoscalingPolicy
from rover_kf.scaling.scaling_state import JobObservation, ScalingState
from rover_kf.simulation.job_simulation import JobScenario, PolicyFactory

Array = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True)
class StepMeasurement:
    """Ranks on hosts, samples a rank, seconds of a step and of it in computing."""

    hosts: int
    ranks: int
    batch: float
    seconds: float
    compute: float


@dataclasses.dataclass(frozen=True, slots=True)
class OptimusLaw:
    """Optimus' synchronous speed without parameter servers: T = t0 b + t1 + t2 K, by NNLS."""

    coefficients: tuple[float, float, float]

    @classmethod
    def fit(cls, rows: Sequence[StepMeasurement]) -> OptimusLaw:
        """Least relative squares; no ridge, so that one size alone is all computing."""
        seconds = np.array([row.seconds for row in rows])
        terms = np.array([(row.batch, 1.0, row.ranks - 1.0) for row in rows])
        scale = np.array([1.0 / terms[:, 0].mean(), 1.0, 1.0])
        if len({row.ranks for row in rows}) == 1:
            scale[1:] = 0.0
        found, _ = optimize.nnls(terms * scale / seconds[:, None], np.ones(len(rows)))
        t0, t1, t2 = (float(value) for value in found * scale)
        return cls((t0, t1, t2))

    def seconds(self, ranks: int, batch: float) -> float:
        """Of a step with so many samples a rank."""
        t0, t1, t2 = self.coefficients
        return max(t0 * batch + t1 + t2 * (ranks - 1), 1e-9)


@dataclasses.dataclass(frozen=True, slots=True)
class PolluxLaw:
    """AdaptDL's seven parameters, fitted as its agent does.

    T_c = a_c + b_c b; T_n = a_r + b_r max(K-2, 0) on one node, a_n + b_n max(K-2, 0) on several;
    T^g = T_c^g + T_n^g.
    """

    parameters: tuple[float, ...]

    @classmethod
    def fit(cls, rows: Sequence[StepMeasurement]) -> PolluxLaw:
        """Least log error of computing and of steps, by L-BFGS-B from AdaptDL's start."""
        data = _Columns.from_rows(rows)
        start, low, high = _bounds(data)
        found = optimize.minimize(
            _objective, start, args=(data,), bounds=list(zip(low, high, strict=True))
        ).x
        if not np.any(data.hosts > 1):
            found[2] = max(found[2], found[4] * 1.1)
            found[3] = max(found[3], found[5] * 1.1)
        return cls(tuple(float(value) for value in found))

    def seconds(self, hosts: int, ranks: int, batch: float) -> float:
        """Of a step with so many samples a rank."""
        row = _Columns.from_rows([StepMeasurement(hosts, ranks, batch, 1.0, 1.0)])
        return math.exp(float(_log_step(np.array(self.parameters), row)[0]))


@dataclasses.dataclass(frozen=True, slots=True)
class _Columns:
    hosts: Array
    ranks: Array
    batch: Array
    seconds: Array
    compute: Array

    @classmethod
    def from_rows(cls, rows: Sequence[StepMeasurement]) -> _Columns:
        table = np.array([dataclasses.astuple(row) for row in rows], dtype=np.float64)
        return cls(*table.T)


def _bounds(data: _Columns) -> tuple[Array, Array, Array]:
    start = np.array([0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001])
    low = np.array([1e-8] * 6 + [1.0])
    high = np.array([np.inf] * 6 + [10.0])
    fixed: dict[int, float] = {}
    if len(np.unique(data.batch)) == 1:
        fixed[0] = float(np.mean(data.compute)) / 2
    if not np.any(data.hosts > 1):
        fixed |= {2: 1e-8, 3: 1e-8}
    if not np.any((data.hosts == 1) & (data.ranks > 1)):
        fixed |= {4: 1e-8, 5: 1e-8}
    if not np.any(data.ranks > 2):  # noqa: PLR2004 - the law's own two
        fixed |= {3: 1e-8, 5: 1e-8}
    for place, value in fixed.items():
        start[place] = low[place] = high[place] = value
    return start, low, high


def _objective(parameters: Array, data: _Columns) -> float:
    compute = np.log(parameters[0] + parameters[1] * data.batch)
    one = np.sqrt(np.mean((compute - np.log(data.compute)) ** 2))
    two = np.sqrt(np.mean((_log_step(parameters, data) - np.log(data.seconds)) ** 2))
    _, _, a_n, b_n, a_r, b_r, g = parameters
    return float(one + two + 1e-3 * (g - 1) ** 2 + 1e-2 * ((b_n / a_n) ** 2 + (b_r / a_r) ** 2))


def _log_step(parameters: Array, data: _Columns) -> Array:
    a_c, b_c, a_n, b_n, a_r, b_r, g = parameters
    more = np.maximum(data.ranks - 2, 1e-8)
    network = np.where(
        data.hosts > 1, a_n + b_n * more, np.where(data.ranks > 1, a_r + b_r * more, 1e-8)
    )
    compute = a_c + b_c * data.batch
    # In logarithms: powers of ten of small seconds would come to nothing.
    found: Array = np.logaddexp(g * np.log(compute), g * np.log(network)) / g
    return found


PACE = 300.0
"""Seconds between two changes of a policy that has no pace of its own."""
SETTLE = 2
"""Windows at a size before a policy judges it."""


class StaticPolicy:
    """What a user asks for and leaves: one full node, or as near to it as the job can be."""

    def __init__(self, case: JobScenario) -> None:
        fits = [size for size in case.sizes if size <= case.table.per_host]
        self._size = fits[-1] if fits else case.sizes[0]

    def begin(self) -> int:
        """The user's guess."""
        return self._size

    def target(self, seen: JobObservation, now: float) -> int:  # noqa: ARG002 - as the protocol has it
        """The same for ever."""
        return seen.replicas

    def changed(self, now: float) -> None:
        """Never."""


class OraclePolicy(StaticPolicy):
    """Knows the table: the size of least cost from the first step to the last."""

    def __init__(self, case: JobScenario) -> None:
        self._size = case.best


class ControllerDecisionPolicy:
    """Production's rule, with production's defaults."""

    def __init__(self, case: JobScenario) -> None:
        self._policy = AutoscalingPolicy(
            mode=AUTO,
            min=case.sizes[0],
            max=case.sizes[-1],
            sizes=case.sizes,
            window_seconds=case.window_seconds,
            value_of_time=case.value_of_time,
        )
        self._state = ScalingState()

    def begin(self) -> int:
        """The fewest."""
        return self._policy.min

    def target(self, seen: JobObservation, now: float) -> int:
        """What decide says."""
        decision, self._state = decide(seen, self._policy, self._state, now=now)
        return decision.target

    def changed(self, now: float) -> None:
        """Keep the state as the controller does."""
        self._state = self._state.with_change(now)


class PacedPolicy:
    """Begins with the fewest; looks when enough windows are there and the last change is past."""

    def __init__(self, case: JobScenario) -> None:
        self._case, self._changed_at = case, -math.inf

    def begin(self) -> int:
        """The fewest."""
        return self._case.sizes[0]

    def target(self, seen: JobObservation, now: float) -> int:
        """What look says, at its pace."""
        here = current_windows(seen, ScalingState(changed_at=max(self._changed_at, 0.0)))
        if now - self._changed_at < PACE or len(here) < SETTLE:
            return seen.replicas
        return self.choose_size(seen)

    def changed(self, now: float) -> None:
        """The pace counts from here."""
        self._changed_at = now

    def choose_size(self, seen: JobObservation) -> int:
        """A number of replicas, one of the sizes."""
        raise NotImplementedError


class UtilizationPolicy(PacedPolicy):
    """A HorizontalPodAutoscaler on the accelerator's utilisation, target 80 %.

    Collectives keep accelerators busy while they wait, so that utilisation reads 100 %.
    """

    TARGET, MEASURED = 0.8, 1.0

    def choose_size(self, seen: JobObservation) -> int:
        """ceil(current * metric / target)."""
        least, sizes = math.ceil(seen.replicas * self.MEASURED / self.TARGET), self._case.sizes
        return next((size for size in sizes if size >= least), sizes[-1])


class SpeedRatioPolicy(PacedPolicy):
    """DLRover's heuristics: grow while a replica more still brings a fifth of what one brought.

    At most 8 replicas, or as many again, a step; all-reduce jobs are never made smaller.
    """

    LEAST_RATIO, MOST_STEP = 0.2, 8

    def __init__(self, case: JobScenario) -> None:
        super().__init__(case)
        self._before: tuple[int, float] | None = None

    def choose_size(self, seen: JobObservation) -> int:
        """Grow, unless the last growth brought too little."""
        rate = 1.0 / seen.windows[-1].step_seconds
        if self._before is not None:
            replicas, old = self._before
            ratio = (rate - old) / (seen.replicas - replicas) / (old / replicas)
            if ratio < self.LEAST_RATIO:
                return seen.replicas
        reach = min(2 * seen.replicas, seen.replicas + self.MOST_STEP)
        fits = [size for size in self._case.sizes if seen.replicas < size <= reach]
        if not fits:
            return seen.replicas
        self._before = (seen.replicas, rate)
        return fits[-1]


class ModelPolicy(PacedPolicy):
    """Fits a law to medians and goes to the size that it finds cheapest, at most twice as large."""

    def choose_size(self, seen: JobObservation) -> int:
        """The cheapest size within reach."""
        rows = self._rows(seen)
        reach = 2 * max(row.ranks for row in rows)
        fits = [size for size in self._case.sizes if size <= reach]
        seconds = self.seconds(rows)
        prices = {size: seconds(size) * (size + self._case.value_of_time) for size in fits}
        best = min(fits, key=lambda size: prices[size])
        return best if self.pays_off(prices[seen.replicas], prices[best]) else seen.replicas

    def seconds(self, rows: list[StepMeasurement]) -> Callable[[int], float]:
        """The law, as seconds of a step by replicas."""
        raise NotImplementedError

    def pays_off(self, current_cost: float, target_cost: float) -> bool:
        """Whether the better price is worth a change."""
        return target_cost < current_cost

    def _rows(self, seen: JobObservation) -> list[StepMeasurement]:
        """The median of each size; how long the exchange takes is measured without noise."""
        by_size: dict[int, list[float]] = {}
        for window in seen.windows:
            by_size.setdefault(window.world_size, []).append(window.step_seconds)
        rows = []
        for size, steps in by_size.items():
            place, batch = self._case.table.packed(size), self._case.global_batch / size
            seconds, sync = self._case.table.times(place, batch)
            median = statistics.median(steps)
            rows.append(
                StepMeasurement(len(place), size, batch, median, median * (1 - sync / seconds))
            )
        return rows


class OptimusPolicy(ModelPolicy):
    """Optimus-like: its law of synchronous training by NNLS; a restart is not reckoned."""

    def seconds(self, rows: list[StepMeasurement]) -> Callable[[int], float]:
        """T = t0 b + t1 + t2 K."""
        law, batch = OptimusLaw.fit(rows), self._case.global_batch
        return lambda size: law.seconds(size, batch / size)


class PolluxPolicy(ModelPolicy):
    """Pollux-like: its seven parameters, and a change discounted by restarts over the job's age.

    The batch is fixed, so that its goodput is throughput.
    """

    def __init__(self, case: JobScenario) -> None:
        super().__init__(case)
        self._law: PolluxLaw | None = None
        self._fitted = 0
        self._restarts, self._now = 0, 0.0

    def target(self, seen: JobObservation, now: float) -> int:
        """As all, and the age is kept."""
        self._now = now
        return super().target(seen, now)

    def changed(self, now: float) -> None:
        """One restart more."""
        super().changed(now)
        self._restarts += 1

    def seconds(self, rows: list[StepMeasurement]) -> Callable[[int], float]:
        """Fitted anew when a size was seen for the first time, as its agent does."""
        law = self._law
        if law is None or len(rows) != self._fitted:
            law = self._law = PolluxLaw.fit(rows)
            self._fitted = len(rows)
        found, case = law, self._case
        return lambda size: found.seconds(
            len(case.table.packed(size)), size, case.global_batch / size
        )

    def pays_off(self, current_cost: float, target_cost: float) -> bool:
        """The better speed counts for (age - restarts * delay) / (age + delay)."""
        delay = self._case.restart_seconds
        share = max(self._now - self._restarts * delay, 0.0) / (self._now + delay)
        return target_cost < current_cost * share


POLICIES: dict[str, PolicyFactory] = {
    "rover": ControllerDecisionPolicy,
    "static": StaticPolicy,
    "hpa": UtilizationPolicy,
    "dlrover": SpeedRatioPolicy,
    "optimus": OptimusPolicy,
    "pollux": PolluxPolicy,
    "oracle": OraclePolicy,
}
"""By the names that results go by."""
