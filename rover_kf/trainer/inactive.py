# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a script that runs outside of a job is told, once."""

from __future__ import annotations

import logging

from rover_kf.api import names

_log = logging.getLogger("rover_kf")


class InactiveNotice:
    """One a checkpointer."""

    def __init__(self) -> None:
        self._said = False

    def warn_once(self) -> None:
        """Why nothing is saved, and what to do."""
        if not self._said:
            _log.warning(
                "rover-kf: %s is not set, so nothing is saved; start the script by rover-kf train, "
                "or in a job that rover-kf has patched, to get checkpoints",
                names.ENV_HOME,
            )
        self._said = True
