# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The controller's table of contents: what starts, what is watched, what ends.

kopf brings the process' life and what happens to nodes. Its handlers for changes, timers and
daemons would put a finalizer on jobs that belong to their users, and a dead controller would keep
them from being deleted; and it reads a collection whole, for which thousands of jobs are too large.
So jobs are followed by rover_kf.cluster.kubernetes.informer, and a change of one queues its key.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any

import kopf
import prometheus_client

from controller.controller_runtime import ControllerRuntime
from controller.settings import read
from rover_kf.api import logging_format
from rover_kf.cluster.kubernetes.conversion import unreachable_since

SWITCH_SECONDS = 0.001
"""After which a thread that reckons lets another one on: a review waits for several such turns."""

_GARBAGE = 5_000, 5, 4000
"""Objects made since a look for cycles among the youngest, and looks until the next older ones are
looked at, too. With Python's 700, 10, 10 a look at all of what a thousand jobs take came every few
seconds while jobs were created, and held up whatever review there was by 0.2 to 0.5 s."""


async def start(settings: kopf.OperatorSettings, memo: Any, **_: object) -> None:
    """Serve reviews, start the reconcilers."""
    settings.posting.enabled = False  # kopf's own log lines are no part of a job's story
    # The kind Node does not come later: definitions need not be watched, nor a right given for it.
    settings.scanning.disabled = True
    await memo.rover.start()


async def observe_node(name: str, status: Mapping[str, Any], memo: Any, **_: object) -> None:
    """Queue every job when a node falls silent or is heard again."""
    await memo.rover.on_node_change(name, silent=unreachable_since({"status": status}) is not None)


async def stop(memo: Any, **_: object) -> None:
    """End the reconcilers and the servers."""
    await memo.rover.stop()


def handlers(*, nodes: bool) -> kopf.OperatorRegistry:
    """What kopf calls.

    Args:
        nodes: whether nodes may be seen; in one namespace alone there is no such right.
    """
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(kopf.login_via_client)
    kopf.on.startup(registry=registry)(start)
    kopf.on.cleanup(registry=registry)(stop)
    if nodes:
        kopf.on.event("", "v1", "nodes", registry=registry)(observe_node)
    return registry


def main() -> None:
    """Run until SIGTERM."""
    told = read(os.environ)
    logging_format.configure(told.log_format, told.log_level)
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # else one line for each change
    # Else each histogram has one more series: when it began.
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = handlers(nodes=not told.watch_namespace)
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.freeze()  # what is loaded stays
    gc.set_threshold(*_GARBAGE)
    # kopf would ask the system for the user's name, which an image need not know.
    identity: Any = told.account
    memo = kopf.Memo(rover=ControllerRuntime(told))
    kopf.run(clusterwide=True, standalone=True, registry=registry, identity=identity, memo=memo)
