# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A pod that leaves serves its slots until the others have what is in no other memory."""

from __future__ import annotations

import pathlib
import time

from rover_kf.api import names
from rover_kf.api.membership import StateHandedOverRequest
from rover_kf.api.status import Ack
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.launcher.event_loop import EventLoop

_STORED_SECONDS = 10.0
"""Where the newest step is on storage as well: the others can read it there."""
_POLL_SECONDS = 5.0
_PATIENCE = 2.0
"""Seconds without a coordinator: the whole job may be ending."""


def wait_for_handover(
    event_loop: EventLoop, shared_dir: pathlib.Path, round_: int, *, until: float, stored: bool
) -> str:
    """Wait until every rank of a later round has its state, or nobody needs this one's.

    ``until`` is the end of the pod's grace in monotonic seconds; ``stored``: the newest step is on
    storage.

    Returns:
        Why they do not have it; empty: they do, or need nothing of it.

    Raises:
        RoverError: nobody can be asked.
    """
    if not _has_rank_local_state(shared_dir):
        return ""
    reply = Ack(done=False, reason="the pod's grace is over")
    if stored:
        until = min(until, time.monotonic() + _STORED_SECONDS)
    while (left := until - time.monotonic()) > 0:
        seconds = min(left, _POLL_SECONDS)
        request = StateHandedOverRequest(round_, seconds)
        limit = seconds + _PATIENCE
        reply = event_loop.request(
            names.PATH_TAKEN, request, Ack, patience=_PATIENCE, limit=limit, timeout=limit
        )
        if reply.done:
            return ""
    return reply.reason


def _has_rank_local_state(shared_dir: pathlib.Path) -> bool:
    """Whether a slot here has what other ranks' slots have not."""
    folders = [path.parent for path in (shared_dir / names.ARENA_DIR).glob("[0-9]*/control")]
    newest = [seal for folder in folders for seal in Arena(folder).sealed()[:1]]
    return any(not seal.replicated for seal in newest)
