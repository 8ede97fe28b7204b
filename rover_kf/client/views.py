# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Sizes, jobs, events, a job's course, its log: what a notebook or a step shows."""

from __future__ import annotations

import html

from rover_kf.api.decisions import Recommendation
from rover_kf.api.jobs import Event, ObservedJob
from rover_kf.client.job_progress import Progress
from rover_kf.client.progress_text import format_time
from rover_kf.system.html_tables import html_table


def format_recommendation(recommendation: Recommendation) -> str:
    """A table of sizes with their intervals, where they come from and why."""
    rows = [
        f"| {item.name} | {item.target:g} {item.unit} | {item.lower:g} to {item.upper:g} "
        f"| {item.basis} | {item.why} |"
        for item in recommendation.quantities
    ]
    head = ["| size | target | between | from | why |", "|---|---|---|---|---|"]
    parts = [f"### Sizes for {recommendation.job}", "", *head, *rows, ""]
    parts += [
        f"- or {one.strategy} {one.precision}, {one.accumulation} micro-batches of {one.batch}: "
        f"{one.why}"
        for one in recommendation.proposals
    ]
    if recommendation.cost is not None:
        cost = recommendation.cost
        parts.append(f"- {cost.per_hour:.2f} {cost.currency} an hour: {cost.why}")
    return "\n".join([*parts, *(f"- {note}" for note in recommendation.notes), ""])


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
                format_time(job.created_at),
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
            (format_time(event.at), "!" if event.warning else "", event.reason, event.message)
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
