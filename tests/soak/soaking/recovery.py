# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a fault cost, and which promise it broke; pure.

The promises are docs/explanation/guarantees.md's: every rank holds the whole state (DDP), so one
pod's memory serves all, a crash costs at most the steps since the last seal, and a newcomer none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from rover_kf.api import names
from rover_kf.api.jobs import Event
from soaking import schedule
from soaking.trace import Round

POD_CREATED = "SuccessfulCreatePod"
"""The operator's own word."""
_DIED = frozenset({names.EVENT_PROCESS_FAILED, names.EVENT_MEMBER_LOST})
EXPLAINS: Mapping[str, frozenset[str]] = {
    schedule.KILL_TRAINER: frozenset({names.EVENT_PROCESS_FAILED}),
    schedule.KILL_LAUNCHER: _DIED,
    schedule.KILL_SIDECAR: _DIED,
    schedule.STOP_TRAINER: _DIED,
    schedule.STOP_SIDECAR: _DIED,
    schedule.DELETE_POD: frozenset({*_DIED, names.EVENT_MEMBER_LEFT}),
    schedule.SCALE_UP: frozenset({names.EVENT_SCALED}),
    schedule.SCALE_DOWN: frozenset({names.EVENT_SCALED}),
}
"""Events one of which has to be told after a fault that killed something or ended a round."""


@dataclasses.dataclass(frozen=True, slots=True)
class Struck:
    """A fault that was made and overcome."""

    kind: str
    pod: str
    """Empty for a change of the number of replicas."""
    at: float
    """Unix seconds."""
    step: int
    """Newest finished step when it was made."""
    round: int
    """That ran then."""
    seconds: float
    """From the fault's end (the signal was sent, the stopped process woken, the change asked for)
    until every rank of the world that was wanted had finished a step."""

    def __str__(self) -> str:
        return f"{self.kind} of {self.pod or 'the job'} at step {self.step}"


@dataclasses.dataclass(frozen=True, slots=True)
class Recovery:
    """A fault and what came of it."""

    struck: Struck
    rounds: tuple[int, ...]
    """That began because of it; none if training simply went on."""
    steps_lost: int
    """Finished before and done again."""
    sources: frozenset[str]
    """Where ranks had their state from."""


def recoveries(struck: Sequence[Struck], rounds: Mapping[int, Round]) -> tuple[Recovery, ...]:
    """Each fault with the rounds that began between it and the next one."""
    found = []
    ends = [*(item.round for item in struck[1:]), max(rounds, default=0)]
    for item, end in zip(struck, ends[: len(struck)], strict=True):
        mine = [rounds[number] for number in sorted(rounds) if item.round < number <= end]
        restored = [line for known in mine for line in known.restored.values()]
        found.append(
            Recovery(
                struck=item,
                rounds=tuple(known.number for known in mine),
                steps_lost=max((_lost(known, rounds) for known in mine), default=0),
                sources=frozenset(line.source for line in restored),
            )
        )
    return tuple(found)


def _lost(resumed: Round, rounds: Mapping[int, Round]) -> int:
    before = max(known.step for known in rounds.values() if known.number < resumed.number)
    steps = [line.step for line in resumed.restored.values()]
    return max(before - min(steps), 0) if steps else 0


def lost_too_much(found: Iterable[Recovery], every: int) -> list[str]:
    """Faults that cost more than the steps between two seals, newcomers that cost any."""
    broken = []
    for item in found:
        most = 0 if item.struck.kind in schedule.LOSSLESS else every
        if item.steps_lost > most:
            broken.append(f"{item.struck} lost {item.steps_lost} steps, {most} are allowed")
    return broken


def ranks_apart(rounds: Iterable[Round]) -> list[str]:
    """Rounds whose ranks went on from different steps."""
    steps = {known.number: {line.step for line in known.restored.values()} for known in rounds}
    return [f"round {n} resumed at {sorted(found)}" for n, found in steps.items() if len(found) > 1]


def wrong_sources(found: Iterable[Recovery]) -> list[str]:
    """Recoveries from elsewhere than memory; storage counts where a pod's memory went."""
    broken = []
    for item in found:
        gone = item.struck.kind in (schedule.DELETE_POD, schedule.SCALE_DOWN)
        allowed = {"memory", "peer", "storage"} if gone else {"memory", "peer"}
        if not item.sources <= allowed:
            broken.append(f"{item.struck} restored from {', '.join(sorted(item.sources))}")
    return broken


def unexplained(found: Sequence[Recovery], events: Sequence[Event]) -> list[str]:
    """Faults for whose rounds no event says that they formed, or none says what happened."""
    formed = [e.message for e in events if e.reason == names.EVENT_WORLD_FORMED]
    ends = [*(item.struck.at for item in found[1:]), float("inf")]
    broken = []
    for item, end in zip(found, ends[: len(found)], strict=True):
        broken += [
            f"{item.struck}: no event says that round {number} was formed"
            for number in item.rounds
            if not any(message.startswith(f"round {number}:") for message in formed)
        ]
        reasons = {e.reason for e in events if item.struck.at <= e.at < end}
        silent = item.struck.kind in schedule.STOPS and not item.rounds
        if not silent and not reasons & EXPLAINS[item.struck.kind]:
            broken.append(f"{item.struck}: nothing among {', '.join(sorted(reasons))} says why")
    return broken
