# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Several jobs, or a job's events: tuples of which a notebook shows a table."""

from __future__ import annotations

import datetime as dt

from rover_kf.api.jobs import Event, ObservedJob
from rover_kf.api.tables import table


class Jobs(tuple[ObservedJob, ...]):
    """Jobs, one a row."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        rows = (
            (
                job.key.namespace,
                job.key.name,
                job.phase or "New",
                ", ".join(f"{count} {kind}" for kind, count in job.replicas.items()),
                _at(job.created_at),
            )
            for job in self
        )
        header = ("namespace", "name", "phase", "replicas", "created")
        return table(f"{len(self)} jobs", header, rows)


class Events(tuple[Event, ...]):
    """Events, the oldest first."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        rows = (
            (_at(event.at), "!" if event.warning else "", event.reason, event.message)
            for event in self
        )
        return table(f"{len(self)} events", ("at", "", "reason", "message"), rows)


def _at(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds).astimezone().strftime("%F %T")
