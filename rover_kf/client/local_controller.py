# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The reconcilers in threads of the client's process, for jobs that no controller looks after.

Used by RoverClient for embedded jobs. The same reconcilers as the controller's, over the same
protocol: one thread a job, which ends when the job's run is recorded.
"""

from __future__ import annotations

import threading

from rover_kf.api.jobs import JobKey
from rover_kf.cluster.protocol import Cluster
from rover_kf.history.history_protocol import HistoryStore
from rover_kf.reconcilers import policy_source
from rover_kf.reconcilers.foreground import ForegroundReconciler
from rover_kf.reconcilers.reconciler import Reconciler

POLL_SECONDS = 0.5
"""Between two looks at a job here: its coordinator is a loopback call away."""
SETTLE_SECONDS = 10.0
"""How long a finished job's record is waited for; the history may be away."""


class LocalController:
    """Looks after chosen jobs until it is closed.

    Args:
        cluster: where the jobs are.
        history: where their runs are recorded.
        policy_of: a job's policy; what a change costs before it was measured depends on the place.
    """

    def __init__(
        self, cluster: Cluster, history: HistoryStore, policy_of: policy_source.PolicyOf
    ) -> None:
        self._cluster, self._history, self._policy_of = cluster, history, policy_of
        self._stopping = threading.Event()
        self._threads: dict[JobKey, threading.Thread] = {}

    def add(self, key: JobKey) -> None:
        """Look after a job from now on."""
        reconcilers = Reconciler(self._cluster, self._history, policy_of=self._policy_of)
        watch = ForegroundReconciler(reconcilers, key, every=POLL_SECONDS)
        thread = threading.Thread(
            target=watch.run, args=(self._stopping,), name=f"watch {key.name}", daemon=True
        )
        self._threads[key] = thread
        thread.start()

    def wait_recorded(self, key: JobKey) -> None:
        """Wait until a finished job is recorded, if it is looked after."""
        if thread := self._threads.get(key):
            thread.join(SETTLE_SECONDS)

    def close(self) -> None:
        """Stop after the looks that are under way."""
        self._stopping.set()
        for thread in self._threads.values():
            thread.join()
        self._threads.clear()
        self._stopping = threading.Event()
