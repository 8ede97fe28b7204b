# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Brokers that do not answer are waited for, and the log says so."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

_log = logging.getLogger("rover_kf")

_FIRST_WARNING_SECONDS, _LAST_WARNING_SECONDS = 2.0, 60.0


class Outage:
    """Warns of brokers that do not answer: soon, then ever more rarely; nobody gives up.

    Args:
        brokers: as the connection names them.
        now: a steady clock, in seconds.
    """

    def __init__(self, brokers: str, now: Callable[[], float] = time.monotonic) -> None:
        self._brokers, self._now = brokers, now
        self._since: float | None = None
        self._pause = _FIRST_WARNING_SECONDS
        self.reason = ""
        """What the client said last."""

    @property
    def is_on(self) -> bool:
        """Whether nothing has come for some time."""
        since = self._since
        return since is not None and self._now() - since > _FIRST_WARNING_SECONDS

    def waiting(self, what: str) -> None:
        """Nothing came; call it every now and then."""
        now = self._now()
        if self._since is None:
            self._since = now
        waited = now - self._since
        if waited >= self._pause:
            _log.warning(
                "rover-kf: Kafka's brokers %s have not answered for %.0f s (%s); %s waits",
                *(self._brokers, waited, self.reason or "no error was told", what),
            )
            self._pause = waited + min(max(waited, _FIRST_WARNING_SECONDS), _LAST_WARNING_SECONDS)

    def over(self) -> None:
        """Something came."""
        if self._since is not None and self._pause > _FIRST_WARNING_SECONDS:
            seconds = self._now() - self._since
            _log.warning("rover-kf: Kafka's brokers %s are back, %.0f s", self._brokers, seconds)
        self._since, self._pause, self.reason = None, _FIRST_WARNING_SECONDS, ""
