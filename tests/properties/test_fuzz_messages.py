# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whatever bytes another process sends in a message's place: that message, or ProtocolError."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rover_kf import errors
from rover_kf.api import codec, error_wire
from tests.support.malformed_messages import (
    BUDGET,
    DEEP,
    DEEP_OBJECT,
    as_bytes,
    damaged,
    messages,
    plain,
    rubbish,
)

MESSAGES = messages()


def read(kind, data):
    """The message; None if it is refused as it has to be."""
    try:
        found = codec.loads(kind, data)
    except errors.ProtocolError:
        return None
    assert isinstance(found, kind)
    # What was taken can be sent on, and is the same at the other end.
    assert codec.loads(kind, codec.dumps(found)) == found
    return found


@BUDGET
@given(st.sampled_from(sorted(MESSAGES)), rubbish)
def test_bytes_that_are_no_message_are_refused(name, data):
    """Any bytes at all, for any message."""
    read(MESSAGES[name], data)


def test_a_message_with_a_strange_part_is_taken_or_refused():
    """Nearly good ones: another type, a number out of range, a field too many or too few."""
    counts = {"taken": 0, "refused": 0}
    shapes = {name: damaged(plain(kind)) for name, kind in MESSAGES.items()}

    @settings(BUDGET, max_examples=8 * BUDGET.max_examples)
    @given(st.data(), st.sampled_from(sorted(MESSAGES)))
    def check(data, name):
        value = data.draw(shapes[name])
        counts["taken" if read(MESSAGES[name], as_bytes(value)) is not None else "refused"] += 1

    check()
    assert all(counts.values())
    print(f"{len(MESSAGES)} kinds of message: {counts}")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (DEEP, "nested"),
        (DEEP_OBJECT, "nested"),
        (b'{"step": 1' + b"0" * 30 + b"}", "64 bits"),
        (b'{"seconds": NaN}', "NaN"),
        (b'{"seconds": 1e999}', "finite"),
        (b'{"seconds": 1' + b"0" * 400 + b"}", "64 bits"),
    ],
    ids=["lists", "objects", "integer", "nan", "infinite", "float"],
)
def test_what_is_wrong_is_said(data, why):
    """The message names it; nothing of it is kept."""
    kind = MESSAGES["StepSample"]
    whole = {field: 1 for field in kind.__dataclass_fields__ if field not in ("step", "seconds")}
    if data.startswith(b'{"s'):
        other = b"step" if b"seconds" in data else b"seconds"
        data = as_bytes(whole)[:-1] + b', "' + other + b'": 1, ' + data[1:]
    tracemalloc.start()
    try:
        with pytest.raises(errors.ProtocolError, match=why):
            codec.loads(kind, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * len(data) + (1 << 20)


def test_text_that_utf8_lacks_is_written_out():
    """A lone surrogate would break whoever writes the text down: metrics, logs, a database."""
    kind = MESSAGES["Event"]
    found = codec.loads(kind, b'{"reason": "a\\ud800", "message": "b", "warning": true}')
    assert found.reason == "a\\ud800"
    assert found.reason.encode()


@BUDGET
@given(st.integers(100, 599), rubbish)
def test_a_refusal_is_an_error_of_ours(status, body):
    """Whatever a server answers with."""
    found = error_wire.decode_error(status, body, unreadable=errors.ClusterUnavailable)
    assert isinstance(found, errors.RoverError)
    assert len(str(found)) < 3000 + len(body)
