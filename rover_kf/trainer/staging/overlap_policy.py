# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a process saves beside training, or copies all before save() returns."""

from __future__ import annotations

import logging

import torch

from rover_kf.system import cpu_quota
from rover_kf.trainer.settings import TrainerSettings

_log = logging.getLogger("rover_kf")


class OverlapPolicy:
    """One a saver.

    Args:
        settings: of the process.
        requested: what the user asked for; None: nothing.
    """

    def __init__(self, settings: TrainerSettings, *, requested: bool | None) -> None:
        self._settings, self._requested = settings, requested

    def should_overlap(self, *, on_device: bool = False) -> bool:
        """Whether save() returns before the copy is done: as asked for, or if a core is spare.

        Args:
            on_device: whether a CUDA device computes, and a core only feeds it.
        """
        if self._requested is not None:
            return self._requested
        threads = 1 if on_device else torch.get_num_threads()
        return cpu_quota.has_idle(self._settings.local_world_size, threads)

    def disable(self, reason: Exception) -> bool:
        """Have no save overlap from here on, where nobody asked for it; else False.

        Args:
            reason: why a step was spoilt; what changes parameters once does so again and again.
        """
        if self._requested is not None:
            return False
        self._requested = False
        text = "rover-kf: %s. This process copies all before save() returns from here on"
        _log.warning(text, reason)
        return True
