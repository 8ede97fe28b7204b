# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Several jobs, a job's events, its course, its log: what a notebook shows as a table or text."""

from __future__ import annotations

import datetime as dt
import html

from rover_kf.api.jobs import Event, ObservedJob
from rover_kf.client.progress.job_progress import Progress
from rover_kf.system.html_tables import html_table


class JobList(tuple[ObservedJob, ...]):
    """Jobs, one a row."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        rows = (
            (
                job.key.namespace,
                job.key.name,
                job.phase or "New",
                ", ".join(f"{count} {kind}" for kind, count in job.replicas.items()),
                _format_time(job.created_at),
            )
            for job in self
        )
        header = ("namespace", "name", "phase", "replicas", "created")
        return html_table(f"{len(self)} jobs", header, rows)


class EventList(tuple[Event, ...]):
    """Events, the oldest first."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        rows = (
            (_format_time(event.at), "!" if event.warning else "", event.reason, event.message)
            for event in self
        )
        return html_table(f"{len(self)} events", ("at", "", "reason", "message"), rows)


class JobHistory(tuple[Progress, ...]):
    """How a job went, look by look; never empty."""

    __slots__ = ()

    @property
    def last(self) -> Progress:
        """The newest look."""
        return self[-1]

    @property
    def events(self) -> EventList:
        """All that was told meanwhile, oldest first."""
        return EventList(event for look in self for event in look.events)

    def _repr_html_(self) -> str:
        first, last = self[0], self.last
        sizes = sorted({look.nodes for look in self if look.nodes})
        rows = (
            ("phase", last.phase or "New"),
            ("seconds", f"{last.timestamp - first.timestamp:.0f}"),
            ("steps", f"{first.step} to {last.step}"),
            ("pods in the world", " to ".join(map(str, dict.fromkeys(sizes[:1] + sizes[-1:])))),
            ("restarts", last.restarts),
        )
        return html_table(f"{last.job}: {len(self)} looks", (), rows)


class LogView(str):
    """What a container printed."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self)}</pre>"


def _format_time(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds).astimezone().strftime("%F %T")
