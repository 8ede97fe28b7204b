# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The pod beside the world that keeps a copy of its newest save, as the coordinator asks it."""

from __future__ import annotations

import asyncio
import logging
import time

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import Holding
from rover_kf.api.replication import Kept, KeptRequest
from rover_kf.sidecar.interfaces import Peers
from rover_kf.sidecar.settings import SidecarSettings

_log = logging.getLogger(__name__)

AWAY_SECONDS = 5.0
"""Without an answer, after which the copy is given up: a restore waits for it."""
MOST_SECONDS = 60.0
"""That it may verify what it keeps."""
_LOOK_SECONDS = 2.0
_PAUSE_SECONDS = 0.2


class Keeper:
    """One a coordinator that has such a pod.

    Args:
        settings: of the sidecar.
        peers: other sidecars.
    """

    def __init__(self, settings: SidecarSettings, peers: Peers) -> None:
        self._host, self._peers = f"{settings.keeper_host}:{settings.port}", peers

    async def kept(self) -> tuple[Holding, ...]:
        """What it keeps; nothing if it cannot be asked in time."""
        begun = heard = time.monotonic()
        why = "it still verifies its copy"
        while (now := time.monotonic()) < min(heard + AWAY_SECONDS, begun + MOST_SECONDS):
            rest = heard + AWAY_SECONDS - now
            request = KeptRequest(min(rest, _LOOK_SECONDS))
            asked = self._peers.tell(self._host, names.PATH_KEPT, request, Kept)
            try:
                found = await asyncio.wait_for(asked, rest)
            except asyncio.TimeoutError:
                why = f"no answer in {rest:.1f} s"
            except errors.RoverError as error:
                why = str(error)
                await asyncio.sleep(_PAUSE_SECONDS)  # its sidecar may just be started again
            else:
                if found.known:
                    return found.holdings
                heard = time.monotonic()
        _log.warning("no copy from %s, which keeps the newest save: %s", self._host, why)
        return ()
