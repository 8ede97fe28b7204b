# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How long after a throughput window had closed a decision was made of it, as a histogram."""

from __future__ import annotations

import threading

from rover_kf.api.jobs import JobKey
from rover_kf.reconcilers.plan import Plan
from rover_kf.reconcilers.status import JobStatus

BOUNDS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Upper bounds in seconds."""
NAME = "rover_kf_decision_seconds"


class DecisionTimes:
    """Counts since the start of the process; safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = [0] * (len(BOUNDS) + 1)
        self._sum = 0.0
        self._judged: dict[JobKey, float] = {}
        """End of each job's newest window that was judged, Unix seconds."""

    def count(
        self, key: JobKey, memory: JobStatus, made: Plan, now: float, *, window: float
    ) -> None:
        """Count a plan's decision, if it judged a window that had not been judged.

        Args:
            key: of the job.
            memory: as it was before; it is written less often than windows close.
            made: the plan, done by now.
            now: Unix seconds.
            window: seconds of the job's windows.
        """
        if made.decision is None:
            return
        judged = made.status.scaling.seen_until
        with self._lock:
            known = max(memory.scaling.seen_until, self._judged.get(key, 0.0))
            # The same window may come with a slightly other time (clock skew).
            if judged <= known + window / 2:
                return
            self._judged[key] = judged
        self.observe(now - judged)

    def forget(self, key: JobKey) -> None:
        """The job is gone."""
        with self._lock:
            self._judged.pop(key, None)

    def observe(self, seconds: float) -> None:
        """Count one decision.

        Args:
            seconds: from the window's last step to the end of what was done about it.
        """
        place = sum(bound < seconds for bound in BOUNDS)
        with self._lock:
            self._counts[place] += 1
            self._sum += seconds

    def text(self) -> str:
        """As Prometheus reads it."""
        with self._lock:
            counts, total = tuple(self._counts), self._sum
        lines = [
            f"# HELP {NAME} From the close of a throughput window to the decision made of it.",
            f"# TYPE {NAME} histogram",
        ]
        below = 0
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), counts, strict=True):
            below += count
            lines.append(f'{NAME}_bucket{{le="{bound}"}} {below}')
        return "\n".join((*lines, f"{NAME}_sum {total:.6f}", f"{NAME}_count {below}", ""))
