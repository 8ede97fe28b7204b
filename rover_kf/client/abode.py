# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Where a client acts and what it has started: cluster, history, reconcilers of this process."""

from __future__ import annotations

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import JobKey
from rover_kf.client import job_name, kubeflow_client, settings
from rover_kf.client.kubeflow_client import KubeflowClient
from rover_kf.client.reconciling import Background
from rover_kf.cluster.local import LocalCluster
from rover_kf.cluster.protocol import Cluster
from rover_kf.doctor.answer import Api
from rover_kf.history import opening
from rover_kf.reconcilers import policies

SETTLE_SECONDS = 10.0
"""How long a finished job's record is waited for; the history may be away."""


class Abode:
    """A cluster, a history, and what goes on in this process for jobs of the two.

    Args:
        cluster: where jobs are, or a TrainingClient of kubeflow's that is connected with it; an
            embedded one in the settings' state folder by default.
        told: settings; the environment's by default.
    """

    def __init__(
        self,
        cluster: Cluster | KubeflowClient | None = None,
        *,
        told: settings.ClientSettings | None = None,
    ) -> None:
        self.settings = told or settings.read()
        self.namespace = "default"
        self.job_kind: str = names.PYTORCHJOB
        """Both of jobs that are named without one by kubeflow's verbs."""
        if isinstance(cluster, KubeflowClient):
            self.namespace, self.job_kind = cluster.namespace, cluster.job_kind
            cluster = kubeflow_client.cluster_of(cluster)
        self.cluster: Cluster = cluster or LocalCluster(self.settings.state)
        self.history = opening.at(self.settings.history)
        self._background: Background | None = None

    @property
    def api(self) -> Api:
        """The API server, for what is no job.

        Raises:
            InputError: jobs are embedded, there is none.
        """
        api: Api | None = getattr(self.cluster, "api", None)
        if api is None:
            raise errors.InputError(
                "jobs are embedded, there is no API server; allowed: --on kubernetes, or "
                'RoverClient.at("kubernetes")'
            )
        return api

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

    def settle(self, key: JobKey) -> None:
        """Have the end of a job recorded before anyone asks the history for it."""
        if self._background is not None:
            self._background.settle(key, SETTLE_SECONDS)


def key_of(key: JobKey | str) -> JobKey:
    """``NAME`` (a PyTorchJob) or ``tfjob/NAME`` is in the namespace ``default``.

    Raises:
        InputError: there is no such kind.
    """
    return key if isinstance(key, JobKey) else job_name.key_of("default", key)
