# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A run's Events as drawings need them: of which sort, of which rank, of which round; pure.

A recovery is a change of the run's world. Times are those of the Events: the coordinator's clock,
but for a rank's restore its own pod's. A coordinator that came with the new world did not see the
last one end, and does not tell when every rank stepped again: there the first window of steady
steps does.
"""

from __future__ import annotations

import dataclasses
import re

from rover_kf.api import names
from rover_kf.api.jobs import Event
from rover_kf.api.records import RunRecord
from rover_kf.history import recorder
from rover_kf.report.charts import Mark

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
_ENDS = (*FAILURES, names.EVENT_WORLD_FORMED, names.EVENT_MEMBER_LEFT, names.EVENT_FINISHED)


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
        formed = read_world(event)
        if formed is None:
            continue
        after = (one for one in events[place + 1 :] if one.reason in _ENDS)
        end = next(after, None)
        why = "" if end is None or end.reason == names.EVENT_WORLD_FORMED else _event_title(end)
        until = last if end is None else end.at
        number, processes, pods = formed
        found.append(RoundSpan(number, event.at, until, processes, pods, why))
    return tuple(found)


def read_world(event: Event) -> tuple[int, int, int] | None:
    """Number, processes and pods of the world that an Event tells of; None: of none."""
    found = _FORMED.search(event.message) if event.reason == names.EVENT_WORLD_FORMED else None
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def make_markers(record: RunRecord, *kinds: str) -> tuple[Mark, ...]:
    """Events as lines of those kinds: ``bad``, ``round``, ``change``."""
    return tuple(
        Mark(event.at, event_class(event), _event_title(event))
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


def _event_title(event: Event) -> str:
    return f"{event.reason}: {event.message}"


RECOVERY_EVENTS = (
    *FAILURES,
    *CHANGES,
    names.EVENT_MEMBER_LEFT,
    names.EVENT_STRAGGLER_REPLACED,
    names.EVENT_BACK_OFF,
)
"""Events that a change of the world begins with, or that are told while it lasts."""
DRAIN_SECONDS = 5.0
"""Most that the first Event of a change may lie before training stopped: members train on until
the step on which they leave together."""

_RECOVERED = re.compile(r"round (\d+): every rank steps again, ([\d.]+) s ")
_RESTORED = re.compile(r"rank (\d+) of \d+ resumes at step (\d+) from (\w+) in round (\d+)\b")


@dataclasses.dataclass(frozen=True, slots=True)
class Restored:
    """One rank's state, back."""

    rank: int
    step: int
    source: str
    """``memory``, ``peer`` or ``storage``."""
    restored_at: float
    pod: str


@dataclasses.dataclass(frozen=True, slots=True)
class RecoveryRecord:
    """From the end of one world until the next one trains, or ends without having trained."""

    round: int
    processes: int
    pods: int
    began: float
    formed: float
    ended: float
    """Unix seconds, all three."""
    seconds: float
    """That it took as the coordinator measured it, from the stop of training; 0: it did not."""
    lost: str
    """What ended it before every rank made a step; empty: nothing did."""
    restored: tuple[Restored, ...] = ()
    events: tuple[Event, ...] = ()
    """Why, and what happened meanwhile."""

    @property
    def planned(self) -> bool:
        """Whether no failure led to it."""
        return not any(event.reason in FAILURES for event in self.events)


def read_recoveries(record: RunRecord) -> tuple[RecoveryRecord, ...]:
    """The run's changes of its world, oldest first; neither its first world nor what is under way.

    Looks at one run tell the same of a change that is over. Of a run whose middle is thinned those
    are left out whose end the record has no more.
    """
    events = [event for event in record.events if event.at]
    whole = len(events) < recorder.MAX_EVENTS
    worlds = [place for place, event in enumerate(events) if read_world(event)]
    found = []
    for last, this, following in zip(worlds, worlds[1:], [*worlds[2:], None], strict=False):
        before, world, after = events[last + 1 : this], events[this], events[this + 1 :]
        inside = after if following is None else events[this + 1 : following]
        one = _measured_recovery(before, world, inside)
        if one is None and whole:
            ending = [event for event in inside if _ends_world(event)]
            ending += [] if following is None else [events[following]]
            trained = _first_step_time(record, world.at, after, ending[0].at if ending else None)
            one = _unmeasured_recovery(record, (before, world, inside), trained, ending[:1])
        if one is not None:
            found.append(one)
    return tuple(found)


def _measured_recovery(
    before: list[Event], world: Event, after: list[Event]
) -> RecoveryRecord | None:
    """A change of which the coordinator told that every rank made a step."""
    number, processes, pods = read_world(world) or (0, 0, 0)
    back, took = next(
        ((one, took) for one in after if (took := _recovery_seconds(one, number))), (None, 0.0)
    )
    if back is None:
        return None
    stopped = back.at - took
    causes = [event for event in before if event.at >= stopped - DRAIN_SECONDS]
    return RecoveryRecord(
        number, processes, pods, _start_time(causes, min(stopped, world.at)), world.at,
        max(back.at, world.at), took, "", _restored_ranks([*before, *after], number),
        _related_events([*causes, *after], back.at),
    )  # fmt: skip


def _unmeasured_recovery(
    record: RunRecord,
    around: tuple[list[Event], Event, list[Event]],
    trained: float | None,
    ending: list[Event],
) -> RecoveryRecord | None:
    """Return a change whose coordinator did not see it begin, or train; None: it goes on.

    ``around`` are the Events before its world, that of its world, and those after.
    ``trained`` is when its steps were seen first; 0: at an unknown time; None: never.
    """
    before, world, after = around
    number, processes, pods = read_world(world) or (0, 0, 0)
    restored = _restored_ranks([*before, *after], number)
    back, lost = max([world.at, *(one.restored_at for one in restored)]), ""
    if trained:
        ended = trained
    elif not ending:
        return None
    elif trained == 0 or ending[0].reason == names.EVENT_FINISHED:  # a script that tells no steps
        ended = min(back, max(ending[0].at, world.at))
    else:
        reason = "Superseded" if read_world(ending[0]) else ending[0].reason
        lost, ended = f"{reason}: {ending[0].message}", max(ending[0].at, world.at)
    steady = max((one.ended_at for one in record.windows if one.ended_at <= world.at), default=0.0)
    causes = [event for event in before if event.at >= steady]
    return RecoveryRecord(
        number, processes, pods, _start_time(causes, world.at), world.at, ended, 0.0, lost,
        restored,
        _related_events([*causes, *after], ended),
    )  # fmt: skip


def _first_step_time(
    record: RunRecord, formed: float, after: list[Event], ended: float | None
) -> float | None:
    """When a world's steps were seen first; 0: at a time that is not known; None: never."""
    windows = [one.started_at for one in record.windows if one.started_at >= formed]
    seen = [at for at in windows if ended is None or at < ended]
    if seen:
        return min(seen)
    # The next change that was measured began when training stopped: after this world, or before.
    stops = [event.at - took for event in after if (took := _recovery_seconds(event))]
    return 0.0 if stops and stops[0] > formed else None


def _start_time(causes: list[Event], latest: float) -> float:
    """When the coordinator told of it; what others saw (without a source) they saw later."""
    seen = [event.at for event in causes if event.reason in RECOVERY_EVENTS and event.source]
    return min([latest, *seen])


def _related_events(events: list[Event], until: float) -> tuple[Event, ...]:
    return tuple(event for event in events if event.reason in RECOVERY_EVENTS and event.at <= until)


def _ends_world(event: Event) -> bool:
    """Whether a world is over by it that never trained."""
    if event.reason in (names.EVENT_JOB_FAILED, names.EVENT_FINISHED):
        return True
    return event.reason in FAILURES and bool(event.source)


def _recovery_seconds(event: Event, number: int | None = None) -> float:
    """Seconds that a change took; 0: the Event tells none, or of another world than that one."""
    found = _RECOVERED.search(event.message) if event.reason == names.EVENT_RECOVERED else None
    ours = found is not None and number in (None, int(found[1]))
    return max(float(found[2]), 1e-3) if found is not None and ours else 0.0


def _restored_ranks(events: list[Event], number: int) -> tuple[Restored, ...]:
    """Of each rank of a round its last; their pods' clocks may be before the coordinator's."""
    found = {}
    for event in events:
        said = _RESTORED.search(event.message) if event.reason == names.EVENT_RESTORED else None
        if said is not None and int(said[4]) == number:
            rank = int(said[1])
            found[rank] = Restored(rank, int(said[2]), said[3], event.at, event.source)
    return tuple(found.values())
