# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The coordinator tells the other pods its address, so that none waits for a name server's.

Names of pods that have run for a while are right; the first pod's own name may be kept as unknown,
or with the address of the pod that it replaces (last_known.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import time

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.status import Acknowledged
from rover_kf.api.whereabouts import Whereabouts
from rover_kf.sidecar.peers import SidecarPeers
from rover_kf.sidecar.settings import SidecarSettings

_log = logging.getLogger(__name__)

FIRST_SECONDS, LAST_SECONDS = 0.5, 8.0
"""Between two tries; doubled each time."""
LONGEST_SECONDS = 120.0
"""Pods that come later find the name."""
AT_ONCE = 16
"""Pods that are told side by side."""


class Herald:
    """One a coordinator.

    Args:
        settings: of its sidecar.
        peers: the way to the others.
    """

    def __init__(self, settings: SidecarSettings, peers: SidecarPeers) -> None:
        self._settings, self._peers = settings, peers
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Tell everybody; called when the pod's launcher joins, again is no harm."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Tell nobody more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        left = others(self._settings)
        delay, until = FIRST_SECONDS, time.monotonic() + LONGEST_SECONDS
        turns = asyncio.Semaphore(AT_ONCE)
        while left and time.monotonic() < until:
            told = await asyncio.gather(*(self._tell(pod, turns) for pod in left))
            left = [pod for pod, done in zip(left, told, strict=True) if not done]
            await asyncio.sleep(delay)
            delay = min(delay * 2, LAST_SECONDS)

    async def _tell(self, pod: str, turns: asyncio.Semaphore) -> bool:
        async with turns:
            message = Whereabouts(self._settings.address)
            host = f"{pod}:{self._settings.port}"
            try:
                await self._peers.tell(host, names.PATH_COORDINATOR, message, Acknowledged)
            except errors.RoverError as error:
                _log.debug("%s is not told yet: %s", pod, error)
                return False
            return True


def others(settings: SidecarSettings) -> list[str]:
    """Host names of all pods that the job may have but its first, which are their pods' names.

    None where the first pod is known by its address: an embedded job's pods have no names.
    """
    if _is_address(settings.coordinator_host):
        return []
    workers = range(settings.max_nodes - settings.masters)
    first = "master" if settings.masters else "worker"
    pods = [f"{settings.job}-{first}-0", *(f"{settings.job}-worker-{index}" for index in workers)]
    return [pod for pod in dict.fromkeys(pods) if pod != settings.pod]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
