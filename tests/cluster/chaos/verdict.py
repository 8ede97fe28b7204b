# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a fault cost and which promise it broke; pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from chaos.journal import Line, newest

MORE_STEPS = 3
"""Of every rank after a fault that need not end a round: it goes on."""
EXACT_SECONDS = 0.001
CLOSE_SECONDS = 5.0
"""A status is some time under way."""


@dataclasses.dataclass(frozen=True, slots=True)
class Struck:
    """A fault as it was made."""

    name: str
    at: float
    """Monotonic seconds."""
    step: int
    """Newest finished step then."""
    sealed: int
    """The last step that the coordinator knew to be in memory just before."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """Of a fault that was overcome."""

    name: str
    seconds: float
    """From the fault until every rank had finished a step after it."""
    resumed: int | None
    """The step that a new round went on from; None: the round went on."""
    steps_lost: int
    source: str
    """Where the state came from."""
    told: tuple[str, ...]
    """Reasons of the Events that told of it."""


def cost(
    struck: Struck, lines: Sequence[Line], ranks: int, told: tuple[str, ...], *, moves: bool
) -> Cost | None:
    """What it cost; None: not every rank trains again yet.

    Args:
        struck: the fault.
        lines: of the journal, in order of time.
        ranks: how many there have to be.
        told: reasons of the Events that came after it.
        moves: whether a new round has to have begun.
    """
    after = [line for line in lines if line.at > struck.at]
    starts = [line for line in after if line.verb == "restored"]
    if moves and len({line.rank for line in starts}) < ranks:
        return None
    again: list[float] = []
    for rank in range(ranks):
        own = [line for line in after if line.rank == rank]
        begun = max((line.at for line in own if line.verb == "restored"), default=struck.at)
        steps = [line for line in own if line.verb == "stepped" and line.at > begun]
        wanted = 1 if begun > struck.at else MORE_STEPS
        if len(steps) < wanted:
            return None
        again.append(steps[wanted - 1].at)
    resumed = min((line.step for line in starts), default=None)
    lost = max(struck.step - resumed, 0) if resumed is not None else 0
    sources = sorted({line.source for line in starts})
    return Cost(struck.name, max(again) - struck.at, resumed, lost, ", ".join(sources) or "-", told)


def broken(struck: Struck, found: Cost, wanted: frozenset[str]) -> list[str]:
    """Promises that were not kept, in words."""
    wrong = []
    if found.resumed is not None and found.resumed < struck.sealed:
        wrong.append(
            f"{struck.name}: went on from step {found.resumed}, though {struck.sealed} was sealed"
        )
    if wanted and not wanted & {*found.told}:
        wrong.append(f"{struck.name}: none of {sorted(wanted)} among {list(found.told)}")
    return wrong


def struck_now(name: str, at: float, lines: Sequence[Line], sealed: int) -> Struck:
    """The fault that is made at that time."""
    return Struck(name, at, newest(lines, at), sealed)


def unaccounted(status: Mapping[str, Any]) -> list[str]:
    """What the account of the job's seconds leaves out, in words.

    Args:
        status: of the coordinator.
    """
    age = status["now"] - status["account_from"]
    spent = sum(status["goodput"].values())
    return [f"the account has {spent} of {age} s"] if abs(age - spent) > EXACT_SECONDS else []


def off_time(first: Mapping[str, Any], last: Mapping[str, Any], seconds: float) -> list[str]:
    """Whether the job's age went on as the time did, in words if not.

    Args:
        first: a status.
        last: a later one.
        seconds: between them.
    """
    ages = [status["now"] - status["account_from"] for status in (first, last)]
    off = ages[1] - ages[0] - seconds
    return [f"the job's age went {off:.1f} s too far"] if abs(off) > CLOSE_SECONDS else []
