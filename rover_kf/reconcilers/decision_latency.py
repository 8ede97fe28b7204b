# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How long after a throughput window had closed a decision was made of it, as a histogram."""

from __future__ import annotations

import threading

from prometheus_client import CollectorRegistry, Histogram

from rover_kf.api.jobs import JobKey
from rover_kf.reconcilers.plan import ReconcilePlan
from rover_kf.reconcilers.status_annotation import JobStatus

BOUNDS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Upper bounds in seconds."""


class DecisionLatency:
    """Counts since the start of the process; safe to share between threads.

    Args:
        registry: exports the histogram; None: nothing exports it.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._lock = threading.Lock()
        self._seconds = Histogram(
            "rover_kf_decision_seconds",
            "From the close of a throughput window to the decision made of it.",
            buckets=BOUNDS,
            registry=registry,
        )
        self._counted_windows: dict[JobKey, float] = {}
        """End of each job's newest window that was judged, Unix seconds."""

    def count(
        self, key: JobKey, job_status: JobStatus, plan: ReconcilePlan, now: float, *, window: float
    ) -> None:
        """Count a plan's decision, if it judged a window that had not been judged.

        Args:
            key: of the job.
            job_status: as it was before; it is written less often than windows close.
            plan: the plan, done by now.
            now: Unix seconds.
            window: seconds of the job's windows.
        """
        if plan.decision is None:
            return
        judged = plan.status.scaling.seen_until
        with self._lock:
            known = max(job_status.scaling.seen_until, self._counted_windows.get(key, 0.0))
            # The same window may come with a slightly other time (clock skew).
            if judged <= known + window / 2:
                return
            self._counted_windows[key] = judged
        self._seconds.observe(now - judged)

    def forget(self, key: JobKey) -> None:
        """The job is gone."""
        with self._lock:
            self._counted_windows.pop(key, None)
