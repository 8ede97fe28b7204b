# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Where a training process asks for slots: the coordinator's desk, or one of its own."""

from __future__ import annotations

import dataclasses
import time
from typing import Protocol

from rover_kf.api import names
from rover_kf.api.data import DataPlan, Partition, Progress
from rover_kf.api.leases import (
    LeaseReply,
    LeaseRequest,
    ProgressRequest,
    RegisterData,
    Registered,
)
from rover_kf.data_sharding.dispatcher import Desk
from rover_kf.data_sharding.interval_set import Ranges
from rover_kf.trainer.sidecar_client import Link

_TIMEOUT_SECONDS = 5.0


class Counter(Protocol):
    """What answers."""

    def register(self, told: RegisterData) -> Registered:
        """Say what this process has.

        Raises:
            RoverError: nobody answers, or refuses.
        """

    def ask(self, request: LeaseRequest) -> LeaseReply:
        """Tell what was used, ask for more.

        Raises:
            RoverError: nobody answers, or refuses.
        """

    def progress(self, name: str, round_: int) -> Progress:
        """What a shared ledger has as done, as of now.

        Raises:
            RoverError: nobody answers, or there is none.
        """


class FarDesk:
    """The coordinator's, through this pod's sidecar.

    Args:
        link: to the sidecar.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    def register(self, told: RegisterData) -> Registered:
        """See Counter."""
        path = names.PATH_DATA_REGISTER
        return self._link.ask(path, told, Registered, timeout=_TIMEOUT_SECONDS)

    def ask(self, request: LeaseRequest) -> LeaseReply:
        """See Counter."""
        path = names.PATH_DATA_LEASE
        return self._link.ask(path, request, LeaseReply, timeout=_TIMEOUT_SECONDS)

    def progress(self, name: str, round_: int) -> Progress:
        """See Counter."""
        asked = ProgressRequest(name, round_)
        return self._link.ask(names.PATH_DATA_PROGRESS, asked, Progress, timeout=_TIMEOUT_SECONDS)


class OwnDesk:
    """Of a process outside rover-kf: it lends this rank an equal part, and asks nobody."""

    def __init__(self) -> None:
        self._desk = Desk()

    def register(self, told: RegisterData) -> Registered:
        """See Counter."""
        plan = _part(told.plan, told.rank, told.world_size)
        progress = dataclasses.replace(
            told.progress,
            done=_inside(plan, told.progress.done),
            poison=_inside(plan, told.progress.poison),
        )
        alone = dataclasses.replace(told, plan=plan, progress=progress, world_size=1, shared=False)
        return self._desk.register(alone, time.monotonic())

    def ask(self, request: LeaseRequest) -> LeaseReply:
        """See Counter."""
        self._desk.tick(time.monotonic())
        return self._desk.ask(request, time.monotonic())

    def progress(self, name: str, round_: int) -> Progress:
        """See Counter."""
        return self._desk.progress(name, round_)


def _part(plan: DataPlan, rank: int, world_size: int) -> DataPlan:
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


def _inside(plan: DataPlan, texts: dict[str, str]) -> dict[str, str]:
    found = {}
    for partition in plan.partitions:
        known = Ranges.from_text(texts.get(partition.name, ""))
        end = partition.end if partition.bounded else max((e for _, e in known), default=0)
        found[partition.name] = Ranges(known.within(partition.begin, end)).to_text()
    return found
