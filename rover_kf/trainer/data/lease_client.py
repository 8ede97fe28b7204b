# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Where a training process asks for slots: the coordinator's desk, or one of its own."""

from __future__ import annotations

import dataclasses
import time
from typing import TypeAlias

from rover_kf.api import names
from rover_kf.api.data import (
    DataPlan,
    DataProgress,
    LeaseReply,
    LeaseRequest,
    Partition,
    ProgressRequest,
    RegisterData,
    RegisterReply,
)
from rover_kf.data_sharding.dispatcher import ShardDispatcher
from rover_kf.data_sharding.interval_set import IntervalSet
from rover_kf.trainer.sidecar_client import SidecarClient

_TIMEOUT_SECONDS = 5.0


class RemoteLeases:
    """A way to the coordinator's ledgers, through this pod's sidecar."""

    def __init__(self, sidecar: SidecarClient) -> None:
        self._sidecar = sidecar

    def register(self, registration: RegisterData) -> RegisterReply:
        """Report what this process has.

        Raises:
            RoverError: nobody answers, or refuses.
        """
        path = names.PATH_DATA_REGISTER
        return self._sidecar.request(path, registration, RegisterReply, timeout=_TIMEOUT_SECONDS)

    def exchange(self, request: LeaseRequest) -> LeaseReply:
        """Report what was used, and request more.

        Raises:
            RoverError: nobody answers, or refuses.
        """
        path = names.PATH_DATA_LEASE
        return self._sidecar.request(path, request, LeaseReply, timeout=_TIMEOUT_SECONDS)

    def progress(self, name: str, round_: int) -> DataProgress:
        """Return what a shared ledger has as done, as of now.

        Raises:
            RoverError: nobody answers, or there is none.
        """
        asked = ProgressRequest(name, round_)
        return self._sidecar.request(
            names.PATH_DATA_PROGRESS, asked, DataProgress, timeout=_TIMEOUT_SECONDS
        )


class LocalLeases:
    """A ledger in a process outside rover-kf: this rank gets an equal part."""

    def __init__(self) -> None:
        self._dispatcher = ShardDispatcher()

    def register(self, registration: RegisterData) -> RegisterReply:
        """See RemoteLeases."""
        plan = _plan_for_rank(registration.plan, registration.rank, registration.world_size)
        progress = dataclasses.replace(
            registration.progress,
            done=_clip(plan, registration.progress.done),
            poison=_clip(plan, registration.progress.poison),
        )
        alone = dataclasses.replace(
            registration, plan=plan, progress=progress, world_size=1, shared=False
        )
        return self._dispatcher.register(alone, time.monotonic())

    def exchange(self, request: LeaseRequest) -> LeaseReply:
        """See RemoteLeases."""
        self._dispatcher.tick(time.monotonic())
        return self._dispatcher.handle_request(request, time.monotonic())

    def progress(self, name: str, round_: int) -> DataProgress:
        """See RemoteLeases."""
        return self._dispatcher.progress(name, round_)


LeaseClient: TypeAlias = RemoteLeases | LocalLeases


def _plan_for_rank(plan: DataPlan, rank: int, world_size: int) -> DataPlan:
    """Of each bounded partition an equal part; of streams every so many-th."""
    found: list[Partition] = []
    for number, partition in enumerate(plan.partitions):
        if partition.bounded:
            size = partition.end - partition.begin
            begin, end = (size * part // world_size for part in (rank, rank + 1))
            found.append(
                dataclasses.replace(
                    partition, begin=partition.begin + begin, end=partition.begin + end
                )
            )
        elif number % world_size == rank:
            found.append(partition)
    return dataclasses.replace(plan, partitions=tuple(found))


def _clip(plan: DataPlan, texts: dict[str, str]) -> dict[str, str]:
    found = {}
    for partition in plan.partitions:
        known = IntervalSet.from_text(texts.get(partition.name, ""))
        end = partition.end if partition.bounded else max((e for _, e in known), default=0)
        found[partition.name] = IntervalSet(known.intersect(partition.begin, end)).to_text()
    return found
