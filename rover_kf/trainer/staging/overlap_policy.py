# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a process saves beside training, or copies all before save() returns."""

from __future__ import annotations

import logging

import torch

from rover_kf.system import cpu_quota
from rover_kf.trainer.settings import TrainerSettings

_log = logging.getLogger("rover_kf")


class Way:
    """One a saver.

    Args:
        settings: of the process.
        asked: what the user asked for; None: nothing.
    """

    def __init__(self, settings: TrainerSettings, *, asked: bool | None) -> None:
        self._settings, self._asked = settings, asked

    def overlaps(self, *, on_device: bool = False) -> bool:
        """Whether save() returns before the copy is done: as asked for, or if a core is spare.

        Args:
            on_device: whether a CUDA device computes, and a core only feeds it.
        """
        if self._asked is not None:
            return self._asked
        threads = 1 if on_device else torch.get_num_threads()
        return cpu_quota.has_spare(self._settings.local_world_size, threads)

    def leaves(self, reason: Exception) -> bool:
        """Have no save overlap from here on, where nobody asked for it; else False.

        Args:
            reason: why a step was spoilt; what changes parameters once does so again and again.
        """
        if self._asked is not None:
            return False
        self._asked = False
        text = "rover-kf: %s. This process copies all before save() returns from here on"
        _log.warning(text, reason)
        return True
