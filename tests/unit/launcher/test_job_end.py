# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The exit code of a launcher whose training has ended."""

from __future__ import annotations

import pathlib

import pytest

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.membership import JoinReply
from rover_kf.api.status import Ack
from rover_kf.launcher import job_end


@pytest.mark.parametrize(
    ("flushed", "late", "code"),
    [
        (Ack(), False, names.EXIT_DONE),
        (Ack(), True, names.EXIT_DONE),
        (Ack(done=False), False, None),
        (Ack(done=False), True, names.EXIT_RETRY),
        (Ack(done=False, permanent=True), False, names.EXIT_USER_ERROR),
        (Ack(done=False, permanent=True), True, names.EXIT_USER_ERROR),
    ],
)
def test_what_follows_a_flush(flushed, late, code):
    """The end, or another question until the time is over."""
    assert job_end.decide(flushed, 601.0 if late else 599.0, 600.0) == code


def test_a_job_that_succeeded_is_asked_until_its_newest_step_is_durable():
    """Also by a sidecar that is away for a while; each try is logged."""
    replies: list[Ack | Exception] = [
        errors.SidecarUnavailable("nobody answers"),
        Ack(done=False, reason="a slow volume"),
        Ack(),
    ]
    code, lines = _end(JoinReply("closed"), replies)
    assert (code, replies) == (0, [])
    assert lines == [
        "the newest checkpoint is not durable yet: nobody answers",
        "the newest checkpoint is not durable yet: a slow volume",
    ]


def test_a_step_that_never_becomes_durable_ends_it():
    """Without another question."""
    code, lines = _end(JoinReply("closed"), [Ack(done=False, reason="no", permanent=True)])
    assert (code, lines) == (1, ["the newest checkpoint is not durable: no"])


def test_a_job_that_failed_is_not_waited_for():
    """Its code is the launcher's."""
    code, lines = _end(JoinReply("closed", exit_code=7, reason="an import"), [])
    assert (code, lines) == (7, ["the job has failed: an import"])


def _end(reply: JoinReply, replies: list[Ack | Exception]) -> tuple[int, list[str]]:
    lines: list[str] = []

    def flush() -> Ack:
        found = replies.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    code = job_end.exit_code(
        reply, flush, lambda _: None, shared_dir=pathlib.Path("nowhere"), log_line=lines.append
    )
    return code, lines
