# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Where a client acts and what it has started: cluster, history, reconcilers of this process."""

from __future__ import annotations

from rover_kf.api.jobs import JobKey, ObservedJob
from rover_kf.client import settings
from rover_kf.client.reconciling import Background
from rover_kf.cluster.local import LocalCluster
from rover_kf.cluster.protocol import Cluster
from rover_kf.history import opening
from rover_kf.reconcilers import policies

SETTLE_SECONDS = 10.0
"""How long a finished job's record is waited for; the history may be away."""


class Abode:
    """A cluster, a history, and what goes on in this process for jobs of the two.

    Args:
        cluster: where jobs are; an embedded one in the settings' state folder by default.
        told: settings; the environment's by default.
    """

    def __init__(
        self, cluster: Cluster | None = None, *, told: settings.ClientSettings | None = None
    ) -> None:
        self.settings = told or settings.read()
        self.cluster: Cluster = cluster or LocalCluster(self.settings.state)
        self.history = opening.at(self.settings.history)
        self._background: Background | None = None

    def close(self) -> None:
        """End embedded jobs and everything that this object has started."""
        if self._background is not None:
            self._background.close()
            self._background = None
        if isinstance(self.cluster, LocalCluster):
            self.cluster.close()
        self.history.close()

    def look_after(self, key: JobKey) -> None:
        """Run the reconcilers for a job in this process until ``close``."""
        if self._background is None:
            here = isinstance(self.cluster, LocalCluster)
            policy_of = policies.embedded if here else policies.of
            self._background = Background(self.cluster, self.history, policy_of)
        self._background.add(key)

    def _settle(self, job: ObservedJob) -> None:
        """Have the end of a job recorded before anyone asks the history for it."""
        if self._background is not None:
            self._background.settle(job.key, SETTLE_SECONDS)


def key_of(key: JobKey | str) -> JobKey:
    """A name alone is a PyTorchJob in the namespace ``default``."""
    return key if isinstance(key, JobKey) else JobKey("default", key)
