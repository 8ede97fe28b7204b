# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the sidecar has for this process to start from: asked for, and opened.

All ranks of a round get the same step; whoever asks again gets the same again. Standard library
only: frameworks without torch use it, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import mmap
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import (
    RejectedState,
    RequestedBoxes,
    RestoreReply,
    RestoreRequest,
)
from rover_kf.api.states import State
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.checkpoint.format import plain_data, snapshot
from rover_kf.checkpoint.format.snapshot import Snapshot
from rover_kf.system import procfs
from rover_kf.trainer.settings import TrainerSettings
from rover_kf.trainer.sidecar_client import Meanwhile, SidecarClient

_log = logging.getLogger("rover_kf")

PATIENCE_SECONDS = 30.0
"""How long a sidecar that is away may take to come back."""
_RESTORE_SECONDS = 1800.0
"""Without a byte from the sidecar, which sends interim responses while ranks read from storage."""


class RestoreClient:
    """One a training process.

    Args:
        settings: of the process.
        sidecar: to the sidecar.
    """

    def __init__(self, settings: TrainerSettings, sidecar: SidecarClient) -> None:
        self._settings, self._sidecar = settings, sidecar
        self._peeked: State | None = None

    def request_slot(
        self,
        boxes: tuple[RequestedBoxes, ...] = (),
        meanwhile: Meanwhile | None = None,
        refused: tuple[RejectedState, ...] = (),
    ) -> RestoreReply:
        """Have a slot filled with the step that all ranks have in common.

        Args:
            boxes: boxes of tensors that this process holds; what is not named comes whole.
            meanwhile: what to do while the sidecar looks for it.
            refused: steps that were brought in this round and could not be taken, the newest
                refusal last; only in a world of one process.

        Raises:
            SidecarUnavailable: it does not answer.
            CheckpointError: a rank does not ask, or nothing fits this world.
        """
        reply = self._request(boxes, meanwhile, refused)
        peeked, self._peeked = self._peeked, None
        if peeked is not None and not refused and reply.state != peeked:
            raise errors.CheckpointError(
                f"{peeked} was damaged on storage after the script had seen its plain values; the "
                "processes have to restart, and resume from an older state"
            )
        return reply

    def peek(self) -> Any:
        """The plain values of what ``bring`` brings, its tensors as None; None: there is nothing.

        Raises:
            SidecarUnavailable: it does not answer.
            CheckpointError: a rank does not ask, or nothing fits this world.
        """
        reply = self._request((), peek_only=True)
        if reply.step is None:
            return None
        self._peeked = reply.state
        return plain_data.decode(json.loads(reply.plain_data), lambda _: None)

    def _request(
        self,
        boxes: tuple[RequestedBoxes, ...],
        meanwhile: Meanwhile | None = None,
        refused: tuple[RejectedState, ...] = (),
        *,
        peek_only: bool = False,
    ) -> RestoreReply:
        settings = self._settings
        return self._sidecar.request(
            names.PATH_RESTORE,
            RestoreRequest(
                settings.local_rank,
                settings.rank,
                settings.world_size,
                settings.round_id,
                _life(),
                boxes,
                refused,
                peek_only,
            ),
            RestoreReply,
            timeout=_RESTORE_SECONDS,
            patience=PATIENCE_SECONDS,
            meanwhile=meanwhile,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class LocalPeek:
    """What a slot of this rank's holds, as far as can be told without holding it."""

    path: pathlib.Path
    seal: Seal
    snapshot: Snapshot
    buffer: mmap.mmap
    """Its bytes; they are the snapshot's as long as the seal stands."""


def peek_local(settings: TrainerSettings) -> LocalPeek | None:
    """The newest step in this rank's own memory, which most often is the one to go on from."""
    if settings.shared_dir is None:
        return None
    arena = Arena(settings.shared_dir / names.ARENA_DIR / str(settings.local_rank))
    try:
        seals = arena.sealed()
        return _peek_slot(arena, seals[0]) if seals else None
    except (OSError, ValueError, errors.CorruptSnapshot) as reason:
        _log.debug("nothing to see in %s: %s", arena.directory, reason)
    return None


def _peek_slot(arena: Arena, seal: Seal) -> LocalPeek:
    path = arena.slot_path(seal.slot)
    with path.open("rb") as file:
        return LocalPeek(path, seal, *_read(file.fileno(), seal.length))


@contextlib.contextmanager
def open_slot(
    reply: RestoreReply, peeked: LocalPeek | None = None
) -> Iterator[tuple[Snapshot, mmap.mmap]]:
    """The slot that the sidecar has filled: what it holds, and its bytes; pinned meanwhile.

    Args:
        reply: the sidecar's.
        peeked: what it may be; if it is, the same objects are given again.

    Raises:
        CorruptSnapshot: the slot no longer holds that step.
    """
    path = pathlib.Path(reply.path)
    arena = Arena(path.parent)
    seals = [seal for seal in arena.sealed() if arena.slot_path(seal.slot).name == path.name]
    if not seals or seals[0].state != reply.state:
        raise errors.CorruptSnapshot(f"{path} no longer holds {reply.state}")
    with arena.pin(seals[0]) as pin:
        if peeked is not None and (peeked.path, peeked.seal) == (path, seals[0]):
            yield peeked.snapshot, peeked.buffer
        else:
            yield _read(pin.descriptor, reply.snapshot_bytes)


def _life() -> str:
    """Tells this process from those that had its place before, whoever started them."""
    return f"{os.getpid()}-{procfs.start_ticks(os.getpid())}"


def _read(descriptor: int, length: int) -> tuple[Snapshot, mmap.mmap]:
    # A private mapping: reads see the slot, a stray write would see a page of its own.
    buffer = mmap.mmap(descriptor, length, access=mmap.ACCESS_COPY)
    with memoryview(buffer) as view:
        return snapshot.read(view), buffer
