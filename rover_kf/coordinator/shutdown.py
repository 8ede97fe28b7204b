# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The job's verdict, which outlives the coordinator's process but not its pod."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import pathlib

from rover_kf.api import names
from rover_kf.elastic.rendezvous.effects import JobClosed
from rover_kf.system import shared_volume

RECENT_SECONDS = 2.0
"""Looks that come less often are not waited for."""


LONGEST_SECONDS = 2.0
"""The wait for one more; an embedded job is looked at twice a second."""


class FinalPoll:
    """Looks at the status by who wants the Events too: the reconciler, not a progress bar."""

    def __init__(self) -> None:
        self._polled_at = float("-inf")
        self.after = 0
        """Sequence of the newest Event that a look knew of."""
        self._polled = asyncio.Event()

    def record_poll(self, now: float, after: int) -> None:
        """The status was asked for.

        Args:
            now: by a steady clock.
            after: the sequence above which Events were asked for.
        """
        self._polled_at, self.after = now, after
        self._polled.set()

    async def wait(self, now: float) -> None:
        """Until it was asked for once more; not at all if nobody has asked lately."""
        if now - self._polled_at > RECENT_SECONDS:
            return
        self._polled.clear()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._polled.wait(), LONGEST_SECONDS)


_log = logging.getLogger(__name__)


VERDICT_FILE = "verdict.json"


class VerdictStore:
    """One a coordinator.

    Args:
        volume_path: mount path of the shared volume.
        pod_uid: whose verdict it is: a volume may outlive its pod where it runs embedded.
    """

    def __init__(self, volume_path: pathlib.Path, pod_uid: str) -> None:
        self._path = volume_path / names.RUN_DIR / VERDICT_FILE
        self._pod_uid = pod_uid

    def write(self, closed: JobClosed) -> None:
        """Keep it."""
        found = {
            "pod_uid": self._pod_uid,
            "exit_code": closed.exit_code,
            "verdict": closed.verdict,
        }
        try:
            shared_volume.replace(self._path, json.dumps(found).encode())
        except OSError as error:
            _log.warning("the verdict could not be kept: %s", error)

    def read(self) -> JobClosed | None:
        """What was kept; None if the job goes on."""
        try:
            found = json.loads(shared_volume.read(self._path))
            same_pod = found["pod_uid"] == self._pod_uid
            closed = JobClosed(int(found["exit_code"]), str(found["verdict"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            _log.warning("%s cannot be read, the job goes on: %s", self._path, error)
            return None
        return closed if same_pod else None
