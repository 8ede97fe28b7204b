# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The pod beside the world that keeps a copy of its newest save, as the coordinator asks it."""

from __future__ import annotations

import asyncio
import logging
import time

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import SlotInfo
from rover_kf.api.replication import StoredReplicas, StoredReplicasRequest
from rover_kf.sidecar.interfaces import PeerClient
from rover_kf.sidecar.settings import SidecarSettings

_log = logging.getLogger(__name__)

AWAY_SECONDS = 5.0
"""Without an answer, after which the copy is given up: a restore waits for it."""
MAX_SECONDS = 60.0
"""That it may verify what it keeps."""
_POLL_SECONDS = 2.0
_PAUSE_SECONDS = 0.2


class PeerCopyClient:
    """One a coordinator that has such a pod.

    Args:
        settings: of the sidecar.
        peers: other sidecars.
    """

    def __init__(self, settings: SidecarSettings, peers: PeerClient) -> None:
        self._host, self._peers = f"{settings.keeper_host}:{settings.port}", peers

    async def fetch_holdings(self) -> tuple[SlotInfo, ...]:
        """What it keeps; nothing if it cannot be asked in time."""
        begun = heard = time.monotonic()
        why = "it still verifies its copy"
        while (now := time.monotonic()) < min(heard + AWAY_SECONDS, begun + MAX_SECONDS):
            rest = heard + AWAY_SECONDS - now
            request = StoredReplicasRequest(min(rest, _POLL_SECONDS))
            asked = self._peers.post(self._host, names.PATH_KEPT, request, StoredReplicas)
            try:
                found = await asyncio.wait_for(asked, rest)
            except asyncio.TimeoutError:
                why = f"no answer in {rest:.1f} s"
            except errors.RoverError as error:
                why = str(error)
                await asyncio.sleep(_PAUSE_SECONDS)  # its sidecar may just be started again
            else:
                if found.verified:
                    return found.slots
                heard = time.monotonic()
        _log.warning("no copy from %s, which keeps the newest save: %s", self._host, why)
        return ()
