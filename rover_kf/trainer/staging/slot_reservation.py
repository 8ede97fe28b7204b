# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The slot of one save, taken by whichever thread has the first bytes for it.

Where all is copied beside training, training does not wait for a slot either: not for its lock, nor
for the record to be cleared, nor, at a first save, for its pages.
"""

from __future__ import annotations

import threading

import torch

from rover_kf.checkpoint.arena.arena import SlotWrite
from rover_kf.trainer.staging.slots import SlotBuffers


class SlotReservation:
    """One a save.

    Args:
        slots: to take it from.
        pinned: whether a CUDA device is going to write it.
    """

    def __init__(self, slots: SlotBuffers, *, pinned: bool) -> None:
        self._slots, self._pinned = slots, pinned
        self._lock = threading.Lock()
        self._slot_write: SlotWrite | None = None
        self._error: BaseException | None = None

    def slot(self) -> int:
        """Its number; takes it when first asked, and waits for its pages, helping with them.

        Raises:
            CheckpointError: both slots are being read for a minute, or it cannot be mapped.
        """
        slot = self.slot_write().slot
        self._slots.wait_ready(slot, pinned=self._pinned)
        return slot

    def buffer(self) -> torch.Tensor:
        """The slot's bytes; raises as ``slot`` does."""
        return self._slots.buffers[self.slot()]

    def slot_write(self) -> SlotWrite:
        """Of the slot; taken when first asked.

        Raises:
            CheckpointError: both slots are being read for a minute.
        """
        with self._lock:
            if self._error is not None:
                raise self._error  # whoever comes next must not wait for a minute, too
            if self._slot_write is None:
                try:
                    self._slot_write = self._slots.arena.fill()
                except Exception as error:
                    self._error = error
                    raise
            return self._slot_write

    def close(self) -> None:
        """Let go of the slot, if it was taken; what was sealed stays."""
        if self._slot_write is not None:
            self._slot_write.close()
