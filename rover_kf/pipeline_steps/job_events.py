# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job's Events, as far as a step may read them.

The service account of a stand-alone Kubeflow Pipelines (``pipeline-runner``) may do everything with
jobs and nothing with Events. What a step does not depend on must not end it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from rover_kf import errors
from rover_kf.api.jobs import Event, JobKey
from rover_kf.client import RoverClient


@final
class EventReader:
    """Reads Events until it is refused.

    Args:
        rover: asks.
        say: takes the line of the log that tells of a refusal.
    """

    def __init__(self, rover: RoverClient, say: Callable[[str], None] = print) -> None:
        self._rover, self._say = rover, say
        self._denied = False

    def events(self, key: JobKey) -> tuple[Event, ...]:
        """Those of the job, oldest first; none once they were refused, which is told once.

        Raises:
            ClusterUnavailable: the API server does not answer.
        """
        if self._denied:
            return ()
        try:
            return tuple(self._rover.events(key))
        except errors.InputError as refusal:
            self._denied = True
            self._say(
                f"note: Events are not told: {refusal}; "
                "docs/components.md (Rights) has the role that lets steps read them"
            )
            return ()
