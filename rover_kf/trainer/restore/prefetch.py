# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A restore made ready while the sidecar looks for the step that all ranks have in common.

Most often it is the newest one in this rank's own memory. Nothing of the live state changes before
the sidecar has said so; if it says otherwise, or if the slot is not the one any more that was read,
the work is thrown away.
"""

from __future__ import annotations

import logging
import mmap
import threading
from collections.abc import Callable
from typing import Any

import torch

from rover_kf.api.checkpoints import RestoreReply
from rover_kf.checkpoint.format.snapshot import Snapshot
from rover_kf.checkpoint.format.tensor_layout import kinds_of
from rover_kf.trainer.restore.load import Loading
from rover_kf.trainer.restore_client import Glimpse, glimpse, opened, opened_lead
from rover_kf.trainer.settings import TrainerSettings
from rover_kf.trainer.staging.copy_threads import Hands
from rover_kf.trainer.staging.slots import DONT_NEED, advise
from rover_kf.trainer.state.dtensor import NONE, Shards
from rover_kf.trainer.state.tensor_views import views

_log = logging.getLogger("rover_kf")


class Anticipation:
    """One a restore; a context, which ends the threads that copy.

    Args:
        settings: of the process.
        state: as it was given to save, freshly built.
        shards: layouts of its DTensors.
        threads: that may copy.
    """

    def __init__(
        self, settings: TrainerSettings, state: dict[str, Any], shards: Shards, threads: int
    ) -> None:
        self._settings, self._state, self._shards = settings, state, shards
        self._hands = Hands(threads - 1)
        self._seen: Glimpse | None = None
        self._loading: Loading | None = None
        self._used: list[mmap.mmap] = []

    def __enter__(self) -> Anticipation:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        if self._loading is not None:
            self._loading.drop()
        self._hands.close()
        if self._used:
            # Takes the kernel tens of milliseconds a gigabyte; nobody need wait for it.
            kept = tuple(self._used)
            threading.Thread(target=_let_go, args=kept, name="rover-unmapping", daemon=True).start()

    @property
    def is_ready(self) -> bool:
        """Whether a step was found that could be made ready; after ``look``."""
        return self._loading is not None

    def look(self, is_over: Callable[[], bool]) -> None:
        """Make ready what can be.

        Args:
            is_over: whether the sidecar has answered; the copies that are not made then ``finish``
                makes, if they are the right ones.
        """
        if not self._shards.are_on_host():  # whose copies there are seen by who uses the device
            return
        seen = glimpse(self._settings)
        if seen is None:
            return
        try:
            lead = (seen.lead.found, seen.lead.buffer) if seen.lead else None
            loading = self._loaded(seen.found, seen.buffer, lead)
            loading.go_ahead(is_over)
        except Exception as reason:  # noqa: BLE001 - told if it is the one: it fails there, too
            _log.debug("step %d was not made ready: %s", seen.seal.step, reason)
            return
        self._seen, self._loading = seen, loading

    def finish(self, reply: RestoreReply) -> None:
        """Bring the slot that the sidecar names into the live state.

        Args:
            reply: the sidecar's; it has a step.

        Raises:
            TornSnapshot: the slot no longer holds that step.
            CheckpointError: the snapshot lacks something that the state has.
        """
        seen = self._seen
        with opened(reply, seen) as (found, buffer), opened_lead(reply, seen) as lead:
            loading, self._loading = self._loading, None
            if loading is not None and not _is(seen, buffer, lead):
                loading.drop()  # its memory is given back first
                loading = None
            if loading is None:
                loading = self._loaded(found, buffer, lead)
            loading.finish()
        self._used = [buffer, *([lead[1]] if lead else [])]

    def _loaded(
        self, found: Snapshot, buffer: mmap.mmap, lead: tuple[Snapshot, mmap.mmap] | None = None
    ) -> Loading:
        tensors = views(buffer, found.tensors)
        if lead is not None:
            tensors = {**views(lead[1], lead[0].tensors), **tensors}
        pieces = kinds_of(found).pieces if self._shards is not NONE else {}
        return Loading(
            self._state, found.metadata, tensors, self._shards, pieces, hands=self._hands
        )


def _is(seen: Glimpse | None, buffer: mmap.mmap, lead: tuple[Snapshot, mmap.mmap] | None) -> bool:
    """Whether what was seen before is what the sidecar names."""
    if seen is None or buffer is not seen.buffer:
        return False
    return (lead[1] if lead else None) is (seen.lead.buffer if seen.lead else None)


def _let_go(*buffers: mmap.mmap) -> None:
    """Take mappings' pages back, which a mapping that is closed does under Python's lock."""
    for buffer in buffers:
        address = torch.frombuffer(buffer, dtype=torch.uint8).data_ptr()
        advise(address, len(buffer), DONT_NEED)
