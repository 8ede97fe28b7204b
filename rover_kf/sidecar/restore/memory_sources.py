# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Where the coordinator's choice lies in memory: slots here or in other pods."""

from __future__ import annotations

import asyncio
import contextlib

from rover_kf import errors
from rover_kf.api.checkpoints import Holding, ResolveReply
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.sidecar.http.peer_source import PeerSource
from rover_kf.sidecar.interfaces import Peers
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.sidecar.slots.slots import Slots
from rover_kf.sidecar.slots.sources import SlotSource, Source


class MemorySources:
    """One a sidecar.

    Args:
        settings: of the sidecar.
        slots: this pod's.
        peers: other sidecars.
    """

    def __init__(self, settings: SidecarSettings, slots: Slots, peers: Peers) -> None:
        self._settings, self._slots, self._peers = settings, slots, peers

    async def open(self, choice: ResolveReply, pins: contextlib.ExitStack) -> list[Source]:
        """Of each holding of the choice; this pod's own are pinned.

        Args:
            choice: of the coordinator.
            pins: for how long.

        Raises:
            TornSnapshot: one of this pod's own was overwritten.
        """
        sources: list[Source] = []
        for holding in choice.holdings:
            if holding.pod != self._settings.pod:
                sources.append(PeerSource(self._peers, holding))
            else:
                # Pinned, so that what is being made does not take its place.
                seal = await asyncio.to_thread(self.seal_of, holding)
                pin = pins.enter_context(self._slots.arena(holding.place).pin(seal))
                sources.append(SlotSource(pin, holding.checksum))
        return sources

    def seal_of(self, holding: Holding) -> Seal:
        """The record of one of this pod's own.

        Raises:
            TornSnapshot: it was overwritten.
        """
        for seal in self._slots.arena(holding.place).sealed():
            same = (seal.step, seal.round, seal.rank, seal.world_size, seal.pieces) == (
                holding.step, holding.round, holding.rank, holding.world_size, holding.pieces
            )  # fmt: skip
            if same:
                return seal
        raise errors.TornSnapshot(f"step {holding.step} was overwritten while it was being chosen")
