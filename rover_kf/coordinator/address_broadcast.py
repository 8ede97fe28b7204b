# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The coordinator tells the other pods its address, so that none waits for a name server's.

Names of pods that have run for a while are right; the first pod's own name may be kept as unknown,
or with the address of the pod that it replaces (last_known.py). Where all pods are new under names
that were there a moment ago, no name is right: then the controller says where they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import time
from collections.abc import Mapping

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.membership import CoordinatorAddress
from rover_kf.api.status import Ack
from rover_kf.sidecar.http.peer_client import HttpPeerClient
from rover_kf.sidecar.settings import SidecarSettings

_log = logging.getLogger(__name__)

FIRST_SECONDS, LAST_SECONDS = 0.5, 8.0
"""Between two tries; doubled each time."""
LONGEST_SECONDS = 120.0
"""Pods that come later find the name."""
CONCURRENCY = 16
"""Pods that are told side by side."""


class AddressBroadcaster:
    """One a coordinator.

    Args:
        settings: of its sidecar.
        peers: the way to the others.
    """

    def __init__(self, settings: SidecarSettings, peers: HttpPeerClient) -> None:
        self._settings, self._peers = settings, peers
        self._task: asyncio.Task[None] | None = None
        self._addresses: dict[str, str] = {}
        self._news = asyncio.Event()

    def begin(self) -> None:
        """Tell everybody; called when the pod's launcher joins, again is no harm."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def locate(self, addresses: Mapping[str, str]) -> None:
        """Learn where other pods are; whoever was not reached is told at once."""
        ours = set(other_pods(self._settings))
        for pod, address in addresses.items():
            if pod in ours and _is_address(address) and self._addresses.get(pod) != address:
                self._addresses[pod] = address
                self._peers.locate(pod, address)
                self._news.set()

    async def stop(self) -> None:
        """Tell nobody more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        left = other_pods(self._settings)
        delay, until = FIRST_SECONDS, time.monotonic() + LONGEST_SECONDS
        turns = asyncio.Semaphore(CONCURRENCY)
        while left and time.monotonic() < until:
            self._news.clear()
            told = await asyncio.gather(*(self._send(pod, turns) for pod in left))
            left = [pod for pod, done in zip(left, told, strict=True) if not done]
            delay = await self._pause(delay)

    async def _pause(self, delay: float) -> float:
        """Wait, unless there is news; how long the next time."""
        try:
            await asyncio.wait_for(self._news.wait(), delay)
        except asyncio.TimeoutError:
            return min(delay * 2, LAST_SECONDS)
        return FIRST_SECONDS

    async def _send(self, pod: str, turns: asyncio.Semaphore) -> bool:
        async with turns:
            message = CoordinatorAddress(self._settings.address)
            host = f"{pod}:{self._settings.port}"
            try:
                await self._peers.post(host, names.PATH_COORDINATOR, message, Ack)
            except errors.RoverError as error:
                _log.debug("%s is not told yet: %s", pod, error)
                return False
            return True


def other_pods(settings: SidecarSettings) -> list[str]:
    """Host names of all pods that the job may have but its first, which are their pods' names.

    None where the first pod is known by its address: an embedded job's pods have no names.
    """
    if _is_address(settings.coordinator_host):
        return []
    workers = range(settings.max_nodes - settings.masters)
    pods = [settings.coordinator_host, *(f"{settings.job}-worker-{index}" for index in workers)]
    return [pod for pod in dict.fromkeys(pods) if pod != settings.pod]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
