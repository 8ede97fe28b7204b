# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a client is connected with: a cluster, its run history, the reconcilers of this process."""

from __future__ import annotations

import dataclasses

from rover_kf import errors
from rover_kf.client.local_controller import LocalController
from rover_kf.client.settings import ClientSettings
from rover_kf.cluster.local import LocalCluster
from rover_kf.cluster.protocol import Cluster
from rover_kf.doctor.api_query import ApiClient
from rover_kf.history import open_history
from rover_kf.history.remote import RemoteHistory
from rover_kf.history.store import SqlHistory
from rover_kf.reconcilers import policy_source


@dataclasses.dataclass(frozen=True, slots=True)
class Connection:
    """A cluster with the history of its runs; the functions of this package take it first."""

    settings: ClientSettings
    cluster: Cluster
    history: SqlHistory | RemoteHistory
    reconcilers: LocalController
    """Of this process, for jobs that no controller looks after."""

    @classmethod
    def open(cls, cluster: Cluster | None, settings: ClientSettings) -> Connection:
        """Connect with a cluster; None is an embedded one in the settings' state folder."""
        cluster = cluster or LocalCluster(settings.state)
        history = open_history.open_history(settings.history)
        policy_of = (
            policy_source.policy_from_embedded_job
            if isinstance(cluster, LocalCluster)
            else policy_source.policy_from_job
        )
        return cls(settings, cluster, history, LocalController(cluster, history, policy_of))

    @property
    def embedded(self) -> LocalCluster | None:
        """The cluster if its jobs run on this machine, else None."""
        return self.cluster if isinstance(self.cluster, LocalCluster) else None

    @property
    def api(self) -> ApiClient:
        """The API server; embedded there is none."""
        api: ApiClient | None = getattr(self.cluster, "api", None)
        if api is None:
            raise errors.InputError(
                "jobs are embedded, there is no API server; allowed: --on kubernetes, or "
                'RoverClient.connect("kubernetes")'
            )
        return api

    def close(self) -> None:
        """Stop the reconcilers, end embedded jobs, close the history."""
        self.reconcilers.close()
        if self.embedded:
            self.embedded.close()
        self.history.close()
