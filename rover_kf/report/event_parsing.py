# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A run's Events as drawings need them: of which sort, of which rank, of which round; pure."""

from __future__ import annotations

import dataclasses
import re

from rover_kf.api import names
from rover_kf.api.jobs import Event
from rover_kf.api.records import RunRecord
from rover_kf.report.charts import Marker

FAILURES = (
    names.EVENT_PROCESS_FAILED,
    names.EVENT_POD_LOST,
    names.EVENT_MEMBER_LOST,
    names.EVENT_HANG,
    names.EVENT_JOB_FAILED,
)
WORLDS = (names.EVENT_WORLD_FORMED, names.EVENT_RECOVERED, names.EVENT_MEMBER_LEFT)
CHANGES = (names.EVENT_SCALED, names.EVENT_SCALE_ROLLED_BACK)
SLOW = (names.EVENT_STRAGGLER, names.EVENT_STRAGGLER_REPLACED)

_FORMED = re.compile(r"round (\d+): (\d+) processes in (\d+) pods")
_RANK = re.compile(r"\brank (\d+)\b")
_ENDS = (*FAILURES, names.EVENT_MEMBER_LEFT, names.EVENT_FINISHED)


@dataclasses.dataclass(frozen=True, slots=True)
class RoundSpan:
    """A world, from its coming together until something ended it."""

    number: int
    start: float
    end: float
    """Unix seconds, both."""
    processes: int
    pods: int
    ended_by: str
    """As the Event says it; empty: nothing that the record knows of."""


def time_range(record: RunRecord) -> tuple[float, float]:
    """First and last moment that the record speaks of, Unix seconds."""
    moments = [record.started_at, record.updated_at]
    moments += [event.at for event in record.events if event.at]
    moments += [at for window in record.windows for at in (window.started_at, window.ended_at)]
    seen = [at for at in moments if at]
    return (min(seen), max(seen)) if seen else (0.0, 1.0)


def read_rounds(record: RunRecord) -> tuple[RoundSpan, ...]:
    """The worlds that the record's Events tell of, in the order of time."""
    found: list[RoundSpan] = []
    last = time_range(record)[1]
    events = [event for event in record.events if event.at]
    for place, event in enumerate(events):
        formed = _FORMED.search(event.message) if event.reason == names.EVENT_WORLD_FORMED else None
        if formed is None:
            continue
        number, processes, pods = map(int, formed.groups())
        after = (one for one in events[place + 1 :] if _ends_round(one))
        end = next(after, None)
        why = "" if end is None or end.reason == names.EVENT_WORLD_FORMED else _event_title(end)
        until = last if end is None else end.at
        found.append(RoundSpan(number, event.at, until, processes, pods, why))
    return tuple(found)


def make_markers(record: RunRecord, *kinds: str) -> tuple[Marker, ...]:
    """Events as lines of those kinds: ``bad``, ``round``, ``change``."""
    return tuple(
        Marker(event.at, event_class(event), _event_title(event))
        for event in record.events
        if event.at and event_class(event) in kinds
    )


def event_class(event: Event) -> str:
    """The class of an Event in drawings; empty: it is not drawn."""
    sorts = (("bad", FAILURES), ("round", WORLDS), ("change", CHANGES), ("slow", SLOW))
    return next((sort for sort, reasons in sorts if event.reason in reasons), "")


def event_rank(event: Event) -> int | None:
    """The first rank that an Event names; None: it names none."""
    found = _RANK.search(event.message)
    return None if found is None else int(found[1])


def _ends_round(event: Event) -> bool:
    return event.reason == names.EVENT_WORLD_FORMED or event.reason in _ENDS


def _event_title(event: Event) -> str:
    return f"{event.reason}: {event.message}"
