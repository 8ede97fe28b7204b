# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the soak writes down of its faults."""

from __future__ import annotations

import json

from soaking import schedule
from soaking.growth import Sample
from soaking.record import Record
from soaking.recovery import Recovery, Struck


def _recovery(kind: str, seconds: float, lost: int, *sources: str) -> Recovery:
    struck = Struck(kind, "digits-worker-1", 100.0, 59, 1, seconds)
    return Recovery(struck, (2,), lost, frozenset(sources))


RECORD = Record(
    minutes=10.0,
    ran_minutes=10.7654,
    seed=7,
    steps=3000,
    goodput=0.91234,
    recoveries=(
        _recovery(schedule.KILL_TRAINER, 1.0, 19, "memory"),
        _recovery(schedule.KILL_TRAINER, 3.0, 4, "memory"),
        _recovery(schedule.DELETE_POD, 10.0, 8, "memory", "peer"),
        _recovery(schedule.SCALE_UP, 12.0, 0, "memory", "peer"),
    ),
    samples=tuple(Sample("client", 1, 5.0 * n, 100.0 + n, 17) for n in range(4)),
    result={"accuracy": 0.98},
)


def test_faults_by_kind():
    """Median and worst of the seconds, worst of the steps, all sources; the longest recovery."""
    found = json.loads(json.dumps(RECORD.to_json()))
    assert found["faults"] == {
        "delete_pod": {
            "count": 1,
            "median_seconds": 10.0,
            "worst_seconds": 10.0,
            "steps_lost_worst": 8,
            "sources": "memory+peer",
        },
        "kill_trainer": {
            "count": 2,
            "median_seconds": 2.0,
            "worst_seconds": 3.0,
            "steps_lost_worst": 19,
            "sources": "memory",
        },
        "scale_up": {
            "count": 1,
            "median_seconds": 12.0,
            "worst_seconds": 12.0,
            "steps_lost_worst": 0,
            "sources": "memory+peer",
        },
    }
    assert found["longest_recovery"]["seconds"] == 10.0
    assert found["rss_growth"] == {"client": {"first": 100.5, "second": 102.5}}
    assert (found["minutes"], found["seed"], found["goodput"]) == (10.0, 7, 0.9123)


def test_the_table_has_a_line_for_each_kind_and_role():
    """And one for its columns' names and one for the whole."""
    assert len(RECORD.table().splitlines()) == 3 + 2 + 1
