# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A client's connections: a cluster, its run history, the reconcilers of this process.

Reconcilers run here for embedded jobs, which no controller manages: one thread a job, until its run
is recorded.
"""

from __future__ import annotations

import dataclasses
import threading

from rover_kf import errors
from rover_kf.api.jobs import JobKey
from rover_kf.client.settings import ClientSettings
from rover_kf.cluster.local import LocalCluster
from rover_kf.cluster.protocol import Cluster
from rover_kf.doctor.api_query import ApiClient
from rover_kf.history.history_protocol import HistoryStore
from rover_kf.history.remote import RemoteHistory
from rover_kf.history.store import SqlHistory, open_history
from rover_kf.reconcilers import policy_source
from rover_kf.reconcilers.reconciler import run_foreground

POLL_SECONDS = 0.5
"""Between two looks at a job here: its coordinator is a loopback call away."""
SETTLE_SECONDS = 10.0
"""How long a finished job's record is waited for; the history may be away."""


class LocalController:
    """A controller of chosen jobs in this process."""

    def __init__(
        self, cluster: Cluster, history: HistoryStore, policy_of: policy_source.PolicyOf
    ) -> None:
        self._cluster, self._history, self._policy_of = cluster, history, policy_of
        self._stopping = threading.Event()
        self._threads: dict[JobKey, threading.Thread] = {}

    def add(self, key: JobKey) -> None:
        """Look after a job from now on."""
        how = {"stop": self._stopping, "policy_of": self._policy_of, "every": POLL_SECONDS}
        where, name = (self._cluster, key, self._history), f"watch {key.name}"
        thread = threading.Thread(
            target=run_foreground, args=where, kwargs=how, name=name, daemon=True
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
        history = open_history(settings.history)
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
