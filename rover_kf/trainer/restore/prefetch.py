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
from collections.abc import Callable, Mapping
from typing import Any

import torch

from rover_kf.api.checkpoints import RestoreReply
from rover_kf.checkpoint.format.snapshot import Snapshot
from rover_kf.checkpoint.format.tensor_layout import read_tensor_layout
from rover_kf.trainer.restore.load import StateLoader
from rover_kf.trainer.restore_client import (
    LocalPeek,
    open_slot,
    peek_local,
)
from rover_kf.trainer.settings import TrainerSettings
from rover_kf.trainer.staging.copy_threads import CopyThreads
from rover_kf.trainer.staging.slots import DONT_NEED, madvise
from rover_kf.trainer.state.dtensor import NO_DTENSORS, DTensorLayouts
from rover_kf.trainer.state.tensor_views import tensor_views

_log = logging.getLogger("rover_kf")


class RestorePrefetch:
    """One a restore; a context, which ends the threads that copy.

    Args:
        settings: of the process.
        state: as it was given to save, freshly built.
        dtensors: layouts of its DTensors.
        threads: that may copy.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        state: dict[str, Any],
        dtensors: DTensorLayouts,
        threads: int,
    ) -> None:
        self._settings, self._state, self._dtensors = settings, state, dtensors
        self._threads = CopyThreads(threads - 1)
        self._peeked: LocalPeek | None = None
        self._loader: StateLoader | None = None
        self._used: mmap.mmap | None = None
        self.metadata: Mapping[str, str] = {}
        """Of the snapshot that ``finish`` has brought."""

    def __enter__(self) -> RestorePrefetch:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        if self._loader is not None:
            self._loader.discard()
        self._threads.close()
        if self._used is not None:
            # Takes the kernel tens of milliseconds a gigabyte; nobody need wait for it.
            threading.Thread(
                target=_release_pages, args=(self._used,), name="rover-unmapping", daemon=True
            ).start()

    @property
    def is_ready(self) -> bool:
        """Whether a step was found that could be made ready; after ``look``."""
        return self._loader is not None

    def prefetch(self, is_over: Callable[[], bool]) -> None:
        """Make ready what can be.

        Args:
            is_over: whether the sidecar has answered; the copies that are not made then ``finish``
                makes, if they are the right ones.
        """
        if not self._dtensors.are_on_host():  # whose copies there are seen by who uses the device
            return
        seen = peek_local(self._settings)
        if seen is None:
            return
        try:
            loading = self._make_loader(seen.snapshot, seen.buffer)
            loading.copy_ahead(is_over)
        except Exception as reason:  # noqa: BLE001 - told if it is the one: it fails there, too
            _log.debug("%s was not made ready: %s", seen.seal.state, reason)
            return
        self._peeked, self._loader = seen, loading

    def finish(self, reply: RestoreReply) -> None:
        """Bring the slot that the sidecar names into the live state.

        Args:
            reply: the sidecar's; it has a step.

        Raises:
            CorruptSnapshot: the slot no longer holds that step.
            CheckpointError: the snapshot lacks something that the state has.
        """
        seen = self._peeked
        with open_slot(reply, seen) as (found, buffer):
            loading, self._loader = self._loader, None
            if loading is not None and (seen is None or buffer is not seen.buffer):
                loading.discard()  # its memory is given back first
                loading = None
            if loading is None:
                loading = self._make_loader(found, buffer)
            loading.finish()
            self.metadata = found.metadata
        self._used = buffer

    def _make_loader(self, header: Snapshot, buffer: mmap.mmap) -> StateLoader:
        tensors = tensor_views(buffer, header.tensors)
        pieces = read_tensor_layout(header).shards if self._dtensors is not NO_DTENSORS else {}
        return StateLoader(
            self._state, header.metadata, tensors, self._dtensors, pieces, threads=self._threads
        )


def _release_pages(buffer: mmap.mmap) -> None:
    """Take a mapping's pages back, which a mapping that is closed does under Python's lock."""
    address = torch.frombuffer(buffer, dtype=torch.uint8).data_ptr()
    madvise(address, len(buffer), DONT_NEED)
