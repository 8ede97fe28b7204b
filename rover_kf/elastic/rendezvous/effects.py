# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the rendezvous wants done; the coordinator does it, in this order."""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

from rover_kf.api.membership import JoinReply, Round, WatchReply


@dataclasses.dataclass(frozen=True, slots=True)
class SendReply:
    """Answer a request that was kept open."""

    ticket: int
    reply: JoinReply | WatchReply


@dataclasses.dataclass(frozen=True, slots=True)
class EmitEvent:
    """Tell an event of the job's story."""

    reason: str
    message: str
    warning: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class RoundStarted:
    """A round starts, or one that runs already was taken over by a new coordinator."""

    round: Round
    adopted: bool = False
    """It runs already."""


@dataclasses.dataclass(frozen=True, slots=True)
class RoundEnded:
    """The running round has ended."""

    planned: bool
    """Whether the world was changed on purpose (a newcomer, a scale, a leave)."""
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class JobClosed:
    """The job has ended; every member is told so from now on."""

    exit_code: int
    verdict: str


Effect: TypeAlias = SendReply | EmitEvent | RoundStarted | RoundEnded | JobClosed
_FIRST, _LAST = 80, 220
"""Characters: who failed stands at the begin, the error at the end of its traceback."""


def truncate(reason: str) -> str:
    """In one line; of a long one its begin and its end."""
    said = " ".join(reason.split())
    if len(said) <= _FIRST + _LAST:
        return said
    return f"{said[:_FIRST].rstrip()} … {said[-_LAST:].lstrip()}"
