# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The job's verdict, which outlives the coordinator's process but not its pod."""

from __future__ import annotations

import json
import logging
import pathlib

from rover_kf.api import names, shared_files
from rover_kf.elastic.effects import Closed

_log = logging.getLogger(__name__)

NAME = "verdict.json"


class VerdictFile:
    """One a coordinator.

    Args:
        home: mount path of the shared volume.
        pod_uid: whose verdict it is: a volume may outlive its pod where it runs embedded.
    """

    def __init__(self, home: pathlib.Path, pod_uid: str) -> None:
        self._path = home / names.RUN_DIR / NAME
        self._pod_uid = pod_uid

    def write(self, closed: Closed) -> None:
        """Keep it."""
        found = {
            "pod_uid": self._pod_uid,
            "exit_code": closed.exit_code,
            "verdict": closed.verdict,
        }
        try:
            shared_files.replace(self._path, json.dumps(found).encode())
        except OSError as error:
            _log.warning("the verdict could not be kept: %s", error)

    def read(self) -> Closed | None:
        """What was kept; None if the job goes on."""
        try:
            found = json.loads(shared_files.read(self._path))
            same_pod = found["pod_uid"] == self._pod_uid
            closed = Closed(int(found["exit_code"]), str(found["verdict"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            _log.warning("%s cannot be read, the job goes on: %s", self._path, error)
            return None
        return closed if same_pod else None
