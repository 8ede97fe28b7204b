# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Everything that runs in the controller besides kopf: servers, reconcilers' thread, resync."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

from controller import retention
from controller.access import ClusterAccess
from controller.defaults import PolicyDefaults
from controller.servers import WebhookServer, health_app, history_metrics, served
from controller.settings import HOOK, WEBHOOK, ControllerSettings
from controller.tls import CertificateSecret
from rover_kf import errors
from rover_kf.cluster import kubernetes_connection
from rover_kf.cluster.kubernetes import KubernetesCluster
from rover_kf.history.store import SqlHistory
from rover_kf.reconcilers.job import Reconcilers
from rover_kf.reconcilers.queue import KeyQueue
from rover_kf.webhook.history import HistoryServer
from rover_kf.webhook.server import make_app

STOP_SECONDS = 10.0
NODE_SECONDS = 2.0
"""Between a node's silence and a look at the jobs: Kubernetes marks the pods after the node."""

_log = logging.getLogger(__name__)


class Rover:
    """The controller as one thing that starts and stops.

    Args:
        settings: from the environment.
    """

    def __init__(self, settings: ControllerSettings) -> None:
        self._settings = settings
        self.queue = KeyQueue()
        """Keys of jobs to look at; kopf adds to it."""
        self._stopping = threading.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._worker: threading.Thread | None = None
        self._webhook: WebhookServer | None = None
        self._cluster: KubernetesCluster | None = None
        self._silent: set[str] = set()
        self._history = SqlHistory(settings.history, shared=settings.history_shared)

    async def start(self) -> None:
        """Start everything; returns at once.

        Raises:
            ClusterUnavailable: there is no cluster to talk to.
        """
        told = self._settings
        cluster = kubernetes_connection.from_environment(token_file=told.token_file)
        self._cluster = cluster
        secret = CertificateSecret(
            cluster.api,
            namespace=told.namespace,
            name=WEBHOOK,
            hook=HOOK,
            hosts=told.webhook_hosts,
        )
        app = make_app(told.injection, PolicyDefaults(told.policy_defaults).read)
        HistoryServer(self._history, ClusterAccess(cluster.api)).add_to(app)
        self._webhook = WebhookServer(app, secret, told.webhook_port)
        self._worker = threading.Thread(target=self._reconcile, args=(cluster,), name="reconcilers")
        self._worker.start()
        retained = retention.keep(self._history, told.history_days, clock=time.time)
        for work in (self._webhook.run(), self._serve_health(), self._resync(cluster), retained):
            self._tasks.append(asyncio.create_task(work))

    async def stop(self) -> None:
        """End the servers, then the reconciler after the job it has in hand."""
        self._stopping.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._worker is not None:
            await asyncio.to_thread(self._worker.join, STOP_SECONDS)

    async def node_seen(self, name: str, *, silent: bool) -> None:
        """A node's object has changed; jobs are looked at if it fell silent or is heard again."""
        if silent is (name in self._silent) or self._cluster is None:
            return
        self._silent ^= {name}
        await self._queue_all(self._cluster, delay=NODE_SECONDS)

    def alive(self) -> bool:
        """Whether the reconcilers' thread and every task still run."""
        working = self._worker is not None and self._worker.is_alive()
        return working and not any(task.done() for task in self._tasks)

    def ready(self) -> bool:
        """Whether the API server can have jobs reviewed."""
        return self._webhook is not None and self._webhook.ready

    def metrics(self) -> str:
        """What /metrics of the health port tells."""
        return history_metrics(available=self._history.available, failures=self._history.failures)

    def _reconcile(self, cluster: KubernetesCluster) -> None:
        with self._history as history:
            reconcilers = Reconcilers(cluster, history, clock=time.time)
            self.queue.run(reconcilers.reconcile, self._stopping)

    async def _serve_health(self) -> None:
        app = health_app(self.alive, self.ready, self.metrics)
        async with served(app, self._settings.health_port):
            await asyncio.Event().wait()

    async def _resync(self, cluster: KubernetesCluster) -> None:
        """Look at every job now and then, whatever the watch stream has missed."""
        while True:
            await self._queue_all(cluster)
            await asyncio.sleep(self._settings.resync_seconds)

    async def _queue_all(self, cluster: KubernetesCluster, *, delay: float = 0.0) -> None:
        try:
            for job in await asyncio.to_thread(cluster.list_jobs):
                self.queue.add(job.key, delay)
        except errors.RoverError as cause:
            _log.warning("the jobs could not be listed: %s", cause)
