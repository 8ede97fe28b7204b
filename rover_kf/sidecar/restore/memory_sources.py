# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Where the coordinator's choice lies in memory: slots here or in other pods."""

from __future__ import annotations

import asyncio
import contextlib

from rover_kf import errors
from rover_kf.api.checkpoints import RestoreStepReply, SlotInfo
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.sidecar.http.peer_source import PeerSource
from rover_kf.sidecar.interfaces import PeerClient
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.sidecar.slots.slots import PodSlots
from rover_kf.sidecar.slots.sources import SlotSource, SnapshotSource


class MemorySources:
    """One a sidecar.

    Args:
        settings: of the sidecar.
        slots: this pod's.
        peers: other sidecars.
    """

    def __init__(self, settings: SidecarSettings, slots: PodSlots, peers: PeerClient) -> None:
        self._settings, self._slots, self._peers = settings, slots, peers

    async def open(
        self, choice: RestoreStepReply, pins: contextlib.ExitStack
    ) -> list[SnapshotSource]:
        """Of each holding of the choice; this pod's own are pinned.

        Args:
            choice: of the coordinator.
            pins: for how long.

        Raises:
            CorruptSnapshot: one of this pod's own was overwritten.
        """
        sources: list[SnapshotSource] = []
        for holding in choice.slots:
            if holding.pod != self._settings.pod:
                sources.append(PeerSource(self._peers, holding))
            else:
                # Pinned, so that what is being made does not take its place.
                seal = await asyncio.to_thread(self.seal_of, holding)
                pin = pins.enter_context(self._slots.arena(holding.path_segment).pin(seal))
                sources.append(SlotSource(pin, holding.checksum))
        return sources

    def seal_of(self, holding: SlotInfo) -> Seal:
        """The record of one of this pod's own.

        Raises:
            CorruptSnapshot: it was overwritten.
        """
        for seal in self._slots.arena(holding.path_segment).sealed():
            same = (seal.state, seal.rank, seal.world_size, seal.pieces) == (
                holding.state, holding.rank, holding.world_size, holding.pieces
            )  # fmt: skip
            if same:
                return seal
        raise errors.CorruptSnapshot(f"{holding.state} was overwritten while it was being chosen")
