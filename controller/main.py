# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The controller's table of contents: what starts, what is watched, what ends.

kopf brings the watch stream and nothing else. Its handlers for changes, timers and daemons would
put a finalizer on jobs that belong to their users, and a dead controller would keep them from
being deleted; so the only handler queues a key, and the reconciler reads the rest afresh.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

import kopf

from controller.rover import Rover
from controller.settings import read
from rover_kf.api import names
from rover_kf.api.jobs import JobKey
from rover_kf.cluster.kubernetes_objects import silent_since


@kopf.on.startup()
async def start(settings: kopf.OperatorSettings, memo: Any, **_: object) -> None:
    """Serve reviews, start the reconcilers."""
    settings.posting.enabled = False  # kopf's own log lines are no part of a job's story
    await memo.rover.start()


@kopf.on.event(
    names.KUBEFLOW_GROUP,
    names.KUBEFLOW_VERSION,
    names.PYTORCHJOBS,
    labels={names.INJECT_LABEL: "true"},
)
async def observe(namespace: str | None, name: str, memo: Any, **_: object) -> None:
    """Queue the job's key."""
    if namespace is not None:  # None is kopf's type for objects of no namespace; jobs have one
        memo.rover.queue.add(JobKey(namespace, name))


@kopf.on.event("", "v1", "nodes")
async def observe_node(name: str, status: Mapping[str, Any], memo: Any, **_: object) -> None:
    """Queue every job when a node falls silent or is heard again."""
    await memo.rover.node_seen(name, silent=silent_since({"status": status}) is not None)


@kopf.on.cleanup()
async def stop(memo: Any, **_: object) -> None:
    """End the reconcilers and the servers."""
    await memo.rover.stop()


def main() -> None:
    """Run until SIGTERM."""
    told = read(os.environ)
    form = "%(asctime)s %(levelname)s %(name)s %(message)s"
    logging.basicConfig(level=told.log_level, format=form)
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # else one line for each change
    # kopf would ask the system for the user's name, which an image need not know.
    identity: Any = told.account
    memo = kopf.Memo(rover=Rover(told))
    kopf.run(clusterwide=True, standalone=True, identity=identity, memo=memo)
