# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Everything that runs in the controller besides kopf: servers, mirrors, reconcilers, resync.

The cluster's policy defaults are a ConfigMap mounted as a folder, one file for each key. They are
read for each review, so that an edit takes effect without a restart.
"""

from __future__ import annotations

import asyncio
import logging
import pathlib
import threading
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, generate_latest

from controller.authorization import ClusterAccess
from controller.http_servers import HistoryMetrics, WebhookServer, make_health_app, serve
from controller.settings import HOOK, WEBHOOK, ControllerSettings
from controller.webhook_certificate import CertificateSecret
from rover_kf import errors
from rover_kf.cluster.kubernetes import config
from rover_kf.cluster.kubernetes.api import KubernetesApi
from rover_kf.cluster.kubernetes.cached_cluster import CachedCluster
from rover_kf.history.history_protocol import HistoryStore
from rover_kf.history.store import SqlHistory
from rover_kf.injection.policy.rover_policy import RoverPolicy
from rover_kf.reconcilers.queue import KeyQueue
from rover_kf.reconcilers.reconciler import DecisionLatency, Reconciler
from rover_kf.webhook.admission import make_app
from rover_kf.webhook.history_api import HistoryServer

STOP_SECONDS = 10.0
WORKERS = 8
"""Jobs that are looked at side by side: one that does not answer holds up no other."""
NODE_SECONDS = 2.0
"""Between a node's silence and a look at the jobs: Kubernetes marks the pods after the node."""
DAY_SECONDS = 86400.0
FIRST_SECONDS = 300.0
"""After the start: a controller that restarts often must not only ever wait for the day's end."""

_log = logging.getLogger(__name__)


class ControllerRuntime:
    """The controller as one thing that starts and stops.

    Args:
        settings: from the environment.
    """

    def __init__(self, settings: ControllerSettings) -> None:
        self._settings = settings
        self.queue = KeyQueue()
        """Keys of jobs to look at."""
        self._stopping = threading.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._workers: tuple[threading.Thread, ...] = ()
        self._webhook: WebhookServer | None = None
        self._cluster: CachedCluster | None = None
        self._silent: set[str] = set()
        self._history = SqlHistory(settings.history, shared=settings.history_shared)
        self._registry = CollectorRegistry()
        self._registry.register(HistoryMetrics(self._history))
        self._times = DecisionLatency(self._registry)

    async def start(self) -> None:
        """Start everything; returns at once.

        Raises:
            ClusterUnavailable: there is no cluster to talk to.
        """
        told = self._settings
        cluster = config.cached_from_environment(
            self.queue.add,
            account=told.injection.controller_account,
            authorities=told.sidecar_authorities,
            namespace=told.watch_namespace,
        )
        self._cluster = cluster
        cluster.follow(self._stopping)
        reconcilers = Reconciler(
            cluster, self._history, clock=time.time, jobs=cluster.job_count, latency=self._times
        )
        looks = (reconcilers.reconcile, self._stopping)
        self._workers = tuple(
            threading.Thread(target=self.queue.run, args=looks, name=f"reconciler-{number}")
            for number in range(WORKERS)
        )
        for worker in self._workers:
            worker.start()
        retained = prune_history(self._history, told.history_days, clock=time.time)
        works = [self._serve_health(), self._resync(cluster), retained]
        if not told.watch_namespace:
            self._webhook = self._make_webhook(cluster.api)
            works.append(self._webhook.run())
        self._tasks += [asyncio.create_task(work) for work in works]

    def _make_webhook(self, api: KubernetesApi) -> WebhookServer:
        told = self._settings
        secret = CertificateSecret(
            api, namespace=told.namespace, name=WEBHOOK, hook=HOOK, hosts=told.webhook_hosts
        )
        app = make_app(told.injection, PolicyDefaults(told.policy_defaults).read)
        HistoryServer(self._history, ClusterAccess(api)).add_to(app)
        return WebhookServer(app, secret, told.webhook_port)

    async def stop(self) -> None:
        """End the servers, then the reconcilers after the jobs they have in hand."""
        self._stopping.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in self._workers:
            await asyncio.to_thread(worker.join, STOP_SECONDS)
        self._history.close()

    async def on_node_change(self, name: str, *, silent: bool) -> None:
        """A node's object has changed; jobs are looked at if it fell silent or is heard again."""
        if silent is (name in self._silent) or self._cluster is None:
            return
        self._silent ^= {name}
        for key in self._cluster.job_keys():
            self.queue.add(key, NODE_SECONDS)

    def is_alive(self) -> bool:
        """Whether the reconcilers' threads, the mirrors and every task still run."""
        working = bool(self._workers) and all(worker.is_alive() for worker in self._workers)
        heard = self._cluster is not None and self._cluster.is_following()
        return working and heard and not any(task.done() for task in self._tasks)

    def is_ready(self) -> bool:
        """Whether the API server can have jobs reviewed, or jobs are heard of without a webhook."""
        if self._settings.watch_namespace:
            return self.is_alive()
        return self._webhook is not None and self._webhook.ready

    def metrics(self) -> str:
        """What /metrics of the health port tells."""
        return generate_latest(self._registry).decode()

    async def _serve_health(self) -> None:
        app = make_health_app(self.is_alive, self.is_ready, self.metrics)
        async with serve(app, self._settings.health_port):
            await asyncio.Event().wait()

    async def _resync(self, cluster: CachedCluster) -> None:
        """Look now and then at jobs that nothing else is due of: suspended ones, for one."""
        every = self._settings.resync_seconds
        while True:
            await asyncio.sleep(every)
            keys = cluster.job_keys()
            for index, key in enumerate(keys):
                # Spread, so that no other job's look has to wait for all of these.
                self.queue.add_missing(key, index / len(keys) * every)


class PolicyDefaults:
    """The newest defaults that are right.

    An edit with a mistake must not stop every job from being created: it is logged, and the last
    good defaults stay.

    Args:
        folder: the ConfigMap's mount; None has no defaults.
    """

    def __init__(self, folder: pathlib.Path | None) -> None:
        self._folder = folder
        self._valid: dict[str, str] = {}
        self._seen: dict[str, str] = {}

    def read(self) -> dict[str, str]:
        """Key (without prefix) to value, e.g. ``{"checkpoint.every": "100"}``."""
        found = _files(self._folder)
        if found != self._seen:
            self._seen = found
            try:
                RoverPolicy.from_annotations({}, defaults=found)
            except errors.PolicyError as refusal:
                _log.error("policy defaults stay as they were: %s", refusal)
            else:
                self._valid = found
        return self._valid


def _files(folder: pathlib.Path | None) -> dict[str, str]:
    if folder is None or not folder.is_dir():
        return {}
    # The kubelet's own links in such a folder start with two dots.
    files = [item for item in folder.iterdir() if item.is_file() and item.name[0] != "."]
    return {item.name: item.read_text().strip() for item in sorted(files)}


async def prune_history(
    history: HistoryStore,
    days: float,
    *,
    clock: Callable[[], float],
    first: float = FIRST_SECONDS,
) -> None:
    """Forget once a day the runs that ended long ago, until cancelled.

    Args:
        history: of the controller.
        days: that a run which ended is kept; 0: for ever.
        clock: Unix seconds.
        first: seconds until it is first done.
    """
    pause = first
    while True:
        await asyncio.sleep(pause)
        pause = DAY_SECONDS
        if not days:
            continue
        try:
            oldest = clock() - days * DAY_SECONDS
            gone = await asyncio.to_thread(history.retain, newer_than=oldest)
        except errors.HistoryUnavailable as cause:
            _log.warning("old runs are not forgotten now: %s", cause)
            continue
        _log.info("%d runs that ended more than %g days ago were forgotten", gone, days)
