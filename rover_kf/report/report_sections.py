# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The report's figures and small tables out of a record; pure."""

from __future__ import annotations

import dataclasses

from rover_kf.api import names
from rover_kf.api.data import DataStatus
from rover_kf.api.jobs import Event
from rover_kf.api.records import RunRecord
from rover_kf.report import event_parsing, number_text

NODES = (
    names.EVENT_STRAGGLER,
    names.EVENT_STRAGGLER_REPLACED,
    names.EVENT_PREFLIGHT,
    names.EVENT_NODE_CHECK_FAILED,
    names.EVENT_NODE_AVOIDED,
    names.EVENT_NODE_AVOIDANCE_ENDED,
    names.EVENT_NODE_CORDONED,
)
"""Events about pods and nodes that hold others up."""
SAVES = (names.EVENT_DURABLE, names.EVENT_RESTORED, names.EVENT_CHECKPOINT_WARNING)
NEWEST_SAVES = 20
"""Shown beside the drawing; all are among the Events."""


def goodput(record: RunRecord) -> tuple[tuple[str, str, float], ...]:
    """(class, words, seconds) of what the job's time was spent on."""
    spent = record.goodput
    return (
        ("productive", "training", spent.productive),
        ("checkpoint", "blocked by saves", spent.checkpoint),
        ("redone", "steps made again after a failure", spent.redone),
        ("recovery", "recovery from failures", spent.recovery),
        ("rendezvous", "coming together after a failure", spent.rendezvous),
        ("scaling", "changes of the world", spent.scaling),
        ("waiting", "waiting for pods and first start", spent.waiting),
    )


def figures(record: RunRecord) -> tuple[tuple[str, str], ...]:
    """The run in a few numbers."""
    total = f" of {record.total_steps}" if record.total_steps is not None else ""
    start, end = event_parsing.time_range(record)
    measured = bool(record.goodput.total)
    saved = bool(record.snapshot_bytes)
    return (
        ("lasted", number_text.seconds(end - start)),
        ("steps", f"{record.steps}{total}" if record.steps else number_text.UNKNOWN),
        (
            "goodput",
            number_text.share(record.goodput.fraction) if measured else number_text.UNKNOWN,
        ),
        ("restarts in place", str(record.restarts)),
        ("last change of the world took", number_text.measured_seconds(record.restart_seconds)),
        ("snapshot of one rank", number_text.size(record.snapshot_bytes)),
        (
            "a save blocked for",
            number_text.seconds(record.save_seconds) if saved else number_text.UNKNOWN,
        ),
        ("saved every", f"{record.checkpoint_every} steps" if record.checkpoint_every else "-"),
        ("memory asked for, a replica", number_text.size(record.requested.get("memory"))),
        ("memory used, worst pod", number_text.size(record.peak.get("memory"))),
        ("CPU asked for, a replica", number_text.number(record.requested.get("cpu"), "cores")),
        ("CPU used, worst pod", number_text.number(record.peak.get("cpu"), "cores")),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank that the others waited for, by all that was told of it."""

    rank: int
    times: int
    first: float
    last: float
    """Unix seconds."""
    newest: str
    """What was told last."""


def slow_ranks(record: RunRecord) -> tuple[SlowRank, ...]:
    """Those told most often first."""
    told: dict[int, list[Event]] = {}
    for event in record.events:
        rank = event_parsing.event_rank(event)
        if event.reason == names.EVENT_STRAGGLER and rank is not None:
            told.setdefault(rank, []).append(event)
    found = [
        SlowRank(rank, len(events), events[0].at, events[-1].at, events[-1].message)
        for rank, events in told.items()
    ]
    return tuple(sorted(found, key=lambda rank: (-rank.times, rank.rank)))


def about_nodes(record: RunRecord) -> tuple[Event, ...]:
    """What was told of slow or unfit pods and nodes, and done about them."""
    return tuple(event for event in record.events if event.reason in NODES)


def saves(record: RunRecord) -> tuple[Event, ...]:
    """The newest of what was told of checkpoints."""
    return tuple(event for event in record.events if event.reason in SAVES)[-NEWEST_SAVES:]


def shares(data: DataStatus) -> str:
    """What each rank has used of what all have."""
    whole = sum(share.used for share in data.workers)
    told = (
        f"rank {one.rank} {number_text.share(one.used / whole)}" for one in data.workers if one.used
    )
    return ", ".join(told) or number_text.UNKNOWN


def verdict(record: RunRecord) -> str:
    """One sentence on how the run ended."""
    ended = {
        "succeeded": "The run succeeded.",
        "failed": "The run failed.",
        "deleted": "The job was deleted before it ended.",
        "running": "The run has not ended yet.",
    }
    return f"{ended.get(record.outcome, record.outcome)} {record.verdict}".strip()
