# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What becomes of a job's size, followed to the job's end."""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
from collections.abc import Callable

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import Event, JobKey
from rover_kf.client import RoverClient
from rover_kf.client.progress_text import format_event
from rover_kf.pipeline_steps.job_status import EventReader

POLL_SECONDS = 5.0
REPORTED_EVENTS = (
    names.EVENT_SCALE_DECISION,
    names.EVENT_SCALED,
    names.EVENT_SCALE_VERIFIED,
    names.EVENT_SCALE_ROLLED_BACK,
    names.EVENT_SCALE_REFUSED,
)


@dataclasses.dataclass(frozen=True, slots=True)
class ScalingHistory:
    """What was seen of a job's size."""

    job: str
    min_replicas: int
    max_replicas: int
    current_replicas: int
    """Worker replicas that the job wanted."""
    events: tuple[Event, ...] = ()

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers for a step's metrics."""
        found = {
            "replicas_fewest": self.min_replicas,
            "replicas_most": self.max_replicas,
            "replicas": self.current_replicas,
        }
        counts = {
            name: sum(event.reason == name for event in self.events) for name in REPORTED_EVENTS
        }
        found["changes"] = counts[names.EVENT_SCALED]
        found["verified"] = counts[names.EVENT_SCALE_VERIFIED]
        found["rolled_back"] = counts[names.EVENT_SCALE_ROLLED_BACK]
        return {name: float(value) for name, value in found.items()}

    @property
    def markdown(self) -> str:
        """A table of what was decided and why."""
        lines = [
            f"### Size of {self.job}",
            "",
            (
                f"{self.min_replicas} to {self.max_replicas} Worker replicas, "
                f"{self.current_replicas} at the end."
            ),
            "",
            "| when | what | why |",
            "|---|---|---|",
        ]
        first = self.events[0].at if self.events else 0.0
        for event in self.events:
            why = event.message.replace("|", "\\|").replace("<", "&lt;")
            lines.append(f"| {event.at - first:.0f} s | {event.reason} | {why} |")
        return "\n".join([*lines, ""])


def watch_scaling(
    rover: RoverClient,
    key: JobKey,
    *,
    timeout_seconds: float,
    start_seconds: float,
    say: Callable[[str], None] = print,
    every: float = POLL_SECONDS,
) -> ScalingHistory:
    """Watch a job until it ends or goes, or the time is over.

    The job may be created in ``start_seconds``; ``every`` are the seconds between two looks.

    Raises:
        NoSuchJob: it was not created in time.
    """
    began, told = time.monotonic(), dict[tuple[str, str, float], Event]()
    story: ScalingHistory | None = None
    sizes: list[int] = []
    hearing = EventReader(rover, say)
    while True:
        waited = time.monotonic() - began
        try:
            job = rover.get(key)
            for event in hearing.events(key):
                mark = (event.reason, event.message, event.at)
                if event.reason in REPORTED_EVENTS and mark not in told:
                    told[mark] = event
                    say(format_event(event, dt.timezone.utc))
            sizes.append(job.replicas.get("worker", 0))
            story = ScalingHistory(
                job.key.name, min(sizes), max(sizes), sizes[-1], tuple(told.values())
            )
            if job.finished or waited > timeout_seconds:
                return story
        except errors.NoSuchJob as gone:
            if story is not None:
                return story
            if waited > start_seconds:
                message = f"{key} is not there after {waited:.0f} s (start_seconds)"
                raise errors.NoSuchJob(message) from gone
        except errors.ClusterUnavailable as away:
            if waited > timeout_seconds:
                raise
            say(f"looked at again in a moment: {away}")
        time.sleep(every)
