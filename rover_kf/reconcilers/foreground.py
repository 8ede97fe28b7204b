# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The same reconcilers for one job in the foreground, for those without rights on the cluster.

Used by ``rover-kf run`` and ``rover-kf watch``. More than one watcher of a job (or one beside the
controller) do not harm it: writes carry the version that was read, and the memory is on the job.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from rover_kf import errors
from rover_kf.api.decisions import ScaleDecision
from rover_kf.api.jobs import JobKey, ObservedJob
from rover_kf.api.status import CoordinatorStatus
from rover_kf.cluster.protocol import Cluster
from rover_kf.history.history_protocol import HistoryStore
from rover_kf.reconcilers import policy_source
from rover_kf.reconcilers.reconciler import Reconciler

LOG = logging.getLogger(__name__)

OnReconcile = Callable[[ObservedJob, "CoordinatorStatus | None", "ScaleDecision | None"], None]
"""Told after each look: the job, its coordinator's status, what was decided."""


class ForegroundReconciler:
    """Looks at one job until it has ended, is gone, or the caller has enough.

    Args:
        reconcilers: what a look does.
        key: the job.
        on_reconcile: told after each look, in the thread that runs the watch.
        every: most seconds between two looks; the job's windows may ask for fewer.
    """

    def __init__(
        self,
        reconcilers: Reconciler,
        key: JobKey,
        on_reconcile: OnReconcile | None = None,
        *,
        every: float = 1.0,
    ) -> None:
        self._reconcilers = reconcilers
        self._key = key
        self._on_reconcile = on_reconcile
        self._every = every

    def run(self, stop: threading.Event) -> ObservedJob | None:
        """Watch until the job has ended and is recorded, is deleted, or stop is set.

        Returns:
            The job as seen last; None if it is not there (any more).
        """
        last: ObservedJob | None = None
        while not stop.is_set():
            delay: float | None = self._every
            try:
                tick = self._reconcilers.run_once(self._key)
            except errors.RoverError as error:  # the loop's top: the next look may do better
                LOG.warning("%s: %s", self._key, error)
            else:
                if tick.job is None:
                    return None
                last, delay = tick.job, tick.delay
                if self._on_reconcile is not None:
                    self._on_reconcile(tick.job, tick.status, tick.decision)
                if tick.job.finished and delay is None:
                    return last
            stop.wait(self._every if delay is None else min(delay, self._every))
        return last


def run_foreground(
    cluster: Cluster,
    key: JobKey,
    history: HistoryStore,
    *,
    on_reconcile: OnReconcile | None = None,
    stop: threading.Event | None = None,
    policy_of: policy_source.PolicyOf = policy_source.policy_from_job,
    every: float = 1.0,
    clock: Callable[[], float] = time.time,
) -> ObservedJob | None:
    """Watch one job to its end in this thread; see Watch."""
    reconcilers = Reconciler(cluster, history, policy_of=policy_of, clock=clock)
    watched = ForegroundReconciler(reconcilers, key, on_reconcile, every=every)
    return watched.run(stop if stop is not None else threading.Event())
