# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a coordinator reports is its tenant's word: it is read within bounds, or not at all."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rover_kf import errors
from rover_kf.api import codec, termination_log
from rover_kf.api.bounds import MAX_ITEMS, MAX_NUMBER, MAX_TEXT, MAX_TIME
from rover_kf.api.jobs import Event, JobKey
from rover_kf.api.samples import Goodput, Throughput
from rover_kf.api.status import MAX_LISTED, CoordinatorStatus, FaultyNode
from rover_kf.cluster.protocol import fetch_status

KEY = JobKey("team-a", "evil")
NOW = time.time()


class Answers:
    """A cluster in which the job's coordinator answers with these bytes."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply

    def call_coordinator(self, *_: Any, **__: Any) -> bytes:
        return self._reply


def fetch(reply: bytes) -> CoordinatorStatus:
    return fetch_status(Answers(reply), KEY)  # type: ignore[arg-type]


def status(**changes: Any) -> CoordinatorStatus:
    window = Throughput(NOW - 10, NOW, 2, 2, 40, 640, 0.1, 16.0)
    made = CoordinatorStatus(
        "evil", "training", 1, 2, 2, 2, 5, None, None, None, 1.0, 0, (window,), Goodput(), (),
        NOW, NOW,
        faulty_nodes=(FaultyNode("n1", "evil-worker-0", "kind", "why", NOW),),
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


def events(count: int) -> tuple[Event, ...]:
    return tuple(Event("R", "m", at=NOW, sequence=number) for number in range(1, count + 1))


REJECTED = {
    "events": (status(events=events(12_000)), r"events has 12000 items; allowed: 256"),
    "windows": (status(windows=status().windows * 65), r"windows has 65 items; allowed: 64"),
    "awaited ranks": (
        status(awaited_ranks=(1,) * (MAX_ITEMS + 1)),
        "awaited_ranks has 10001 items",
    ),
    "a time": (status(events=(Event("R", "m", at=1e300),)), r"events\[\]\.at is 1e\+300"),
    "a sum": (status(goodput=Goodput(productive=1e300)), r"goodput\.productive is 1e\+300"),
    "a count": (status(step=2**62), r"step is 4611686018427387904; allowed: up to 1e\+15"),
    "a negative time": (status(started_at=-1e18), "started_at is -1e"),
    "a text": (status(verdict="x" * (MAX_TEXT + 1)), "verdict has 16385 characters"),
}


@pytest.mark.parametrize("what", REJECTED)
def test_a_status_out_of_bounds_is_rejected_with_the_place(what):
    """bcea6b1 made a Kubernetes Event of each of 12,000, and failed for ever at a time of 1e300."""
    given_status, place = REJECTED[what]
    with pytest.raises(errors.ProtocolError, match=place):
        fetch(codec.dumps(given_status))


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{}", '{"job": NaN}', "[" * 9000, '"x"', "\xff"]
)
def test_an_answer_that_is_no_status_is_rejected(text):
    """As JSON of another kind, too deep, or no JSON at all."""
    with pytest.raises(errors.ProtocolError):
        fetch(text.encode("latin-1"))


def test_a_status_at_the_bounds_is_read():
    """All that an honest coordinator sends, at its largest."""
    largest = status(
        events=events(MAX_LISTED["events"]),
        windows=status().windows * MAX_LISTED["windows"],
        verdict="x" * MAX_TEXT,
        snapshot_bytes=int(MAX_NUMBER),
    )
    assert fetch(codec.dumps(largest)) == largest


HOSTILE = st.sampled_from(
    [
        1e300,
        -1e300,
        2**62,
        -(2**62),
        2**31,
        -1,
        0.5,
        "x" * 70_000,
        "",
        None,
        True,
        [],
        {},
        [0] * 20_000,
    ]
)


@given(st.data())
def test_what_is_read_is_finite_and_short(data):
    """Any field of a status and of what it holds, with any value: an error that names the place, or
    numbers, times and lists that the controller can afford."""
    plain = json.loads(codec.dumps(status(events=events(2))))
    for _ in range(data.draw(st.integers(1, 3))):
        inner: Any = plain
        key = data.draw(st.sampled_from(sorted(inner)))
        while isinstance(inner[key], (dict, list)) and inner[key] and data.draw(st.booleans()):
            inner = inner[key]
            keys = sorted(inner) if isinstance(inner, dict) else range(len(inner))
            key = data.draw(st.sampled_from(keys))
        inner[key] = data.draw(HOSTILE)
    try:
        read = fetch(json.dumps(plain).encode())
    except errors.ProtocolError as refusal:
        assert len(str(refusal)) < 500  # noqa: PT017 - most draws are rejected, and not all
        return
    for event in read.events:
        assert abs(event.at) <= MAX_TIME
        time.gmtime(event.at)
    assert len(read.events) <= MAX_LISTED["events"]
    assert abs(sum(dataclasses.astuple(read.goodput))) < 1e16


@pytest.mark.parametrize("what", REJECTED)
def test_a_last_status_is_read_within_the_same_bounds(what, caplog):
    """What a pod leaves in its termination log is its tenant's word as well."""
    assert termination_log.unpack(codec.dumps(status()).decode(), "a pod") == status()
    assert termination_log.unpack(codec.dumps(REJECTED[what][0]).decode(), "a pod") is None
    assert "a pod left a last status that cannot be read" in caplog.text
