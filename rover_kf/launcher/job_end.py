# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The exit code of a launcher whose training has ended, rover-run's and torchrun's alike.

A model that is not stored is not trained: a launcher ends with 0 after its newest step is durable.
"""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable

from rover_kf import errors
from rover_kf.api import names, termination_log
from rover_kf.api.membership import JoinReply
from rover_kf.api.status import Ack

FLUSH_PATIENCE = 600.0
"""Seconds that the newest step has to become durable after training has ended."""
_PAUSE = 1.0


def exit_code(
    reply: JoinReply,
    flush: Callable[[], Ack],
    pause: Callable[[float], None],
    *,
    shared_dir: pathlib.Path,
    log_line: Callable[[str], None],
) -> int:
    """Wait until the newest step is durable, where the job has succeeded.

    ``flush`` requests that, ``pause`` lets seconds pass.

    Returns:
        0: the job has succeeded. EXIT_USER_ERROR: its newest step never becomes durable.
        EXIT_RETRY: it is not durable yet, and another container has to try. Else the failed job's.
    """
    if reply.exit_code:
        log_line(f"the job has failed: {reply.reason}")
        termination_log.write(shared_dir, reply.reason)
        return reply.exit_code
    until = time.monotonic() + FLUSH_PATIENCE
    while True:
        try:
            flushed = flush()
        except errors.RoverError as error:
            flushed = Ack(done=False, reason=str(error))
        code = decide(flushed, time.monotonic(), until)
        if not flushed.done:
            yet = "" if flushed.permanent else " yet"
            log_line(f"the newest checkpoint is not durable{yet}: {flushed.reason}")
        if code == names.EXIT_USER_ERROR:
            termination_log.write(shared_dir, flushed.reason)
        if code is not None:
            return code
        pause(_PAUSE)


def decide(flushed: Ack, now: float, until: float) -> int | None:
    """Choose the exit code after a reply to a flush; None: request again until a monotonic time."""
    if flushed.done:
        return names.EXIT_DONE
    if flushed.permanent:  # a pod that is tried again would train for the same end
        return names.EXIT_USER_ERROR
    return names.EXIT_RETRY if now > until else None
