# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the API server does not let us read, logged once and not at every look."""

from __future__ import annotations

import logging
import threading

LOG = logging.getLogger(__name__)


class DeniedReads:
    """Reads that are refused; safe for threads."""

    def __init__(self) -> None:
        self._logged: set[str] = set()
        self._lock = threading.Lock()

    def record_denied(self, what: str, meaning: str, refusal: Exception) -> None:
        """Log it, if it was not refused already the last time.

        Args:
            what: is not looked at, such as ``room on nodes``.
            meaning: what is done without it.
            refusal: the API server's words.
        """
        with self._lock:
            known = what in self._logged
            self._logged.add(what)
        if not known:
            LOG.info("%s: not looked at, said once: %s; %s", what, refusal, meaning)

    def record_allowed(self, what: str) -> None:
        """It was read: a refusal after this is news again."""
        with self._lock:
            self._logged.discard(what)
