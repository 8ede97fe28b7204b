# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which fault comes when, from a seed alone; pure."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

KILL_TRAINER = "kill_trainer"
KILL_LAUNCHER = "kill_launcher"
KILL_SIDECAR = "kill_sidecar"
DELETE_POD = "delete_pod"
STOP_TRAINER = "stop_trainer"
STOP_SIDECAR = "stop_sidecar"
SCALE_UP = "scale_up"
SCALE_DOWN = "scale_down"

KINDS = (
    KILL_TRAINER,
    KILL_LAUNCHER,
    KILL_SIDECAR,
    DELETE_POD,
    STOP_TRAINER,
    STOP_SIDECAR,
    SCALE_UP,
    SCALE_DOWN,
)
CHANGES_WORLD = frozenset({KILL_TRAINER, KILL_LAUNCHER, DELETE_POD, SCALE_UP, SCALE_DOWN})
"""Kinds after which training must go on in a new round."""
STOPS = frozenset({STOP_TRAINER, STOP_SIDECAR})
"""Kinds after which nothing need have happened: what stood still goes on."""
RESIZES = frozenset({SCALE_UP, SCALE_DOWN})
"""Kinds that change the number of replicas."""
LOSSLESS = frozenset({SCALE_UP})
"""Kinds that must never cost a step. A pod that is told to end (deleted, scaled away) lets the
world drain first, too; where that comes too late on a starved machine (docs/critiques.md) it may
cost as much as a crash, and is held to that here."""

FEWEST, MOST = 2, 3
SHORTEST_PAUSE, LONGEST_PAUSE = 20.0, 60.0
SHORTEST_STOP, LONGEST_STOP = 2.0, 9.0
"""Seconds; a member that is silent for 6 is taken for lost, so both sides of that are seen."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One thing that will go wrong."""

    kind: str
    pause: float
    """Seconds of undisturbed training before it."""
    index: int
    """Replica that it hits; -1 for a change of their number."""
    seconds: float
    """How long a process is stopped; 0 if nothing is."""
    nodes: int
    """Replicas that train afterwards."""


def faults(seed: int) -> Iterator[Fault]:
    """Faults without end: every kind comes once before any comes again, in an order by chance."""
    chance = random.Random(seed)
    nodes = FEWEST
    while True:
        kinds = list(KINDS)
        chance.shuffle(kinds)
        up, down = sorted((kinds.index(SCALE_UP), kinds.index(SCALE_DOWN)))
        kinds[up], kinds[down] = SCALE_UP, SCALE_DOWN
        for kind in kinds:
            index = -1 if kind in RESIZES else chance.randrange(nodes)
            nodes = {SCALE_UP: MOST, SCALE_DOWN: FEWEST}.get(kind, nodes)
            stopped = kind in STOPS
            yield Fault(
                kind=kind,
                pause=round(chance.uniform(SHORTEST_PAUSE, LONGEST_PAUSE), 1),
                index=index,
                seconds=round(chance.uniform(SHORTEST_STOP, LONGEST_STOP), 1) if stopped else 0.0,
                nodes=nodes,
            )


def steps_for(minutes: float, *, samples_per_second: float, global_batch: int) -> int:
    """Steps that the fewest replicas take in so many minutes if nothing disturbs them.

    Args:
        minutes: wanted.
        samples_per_second: that each replica's input gives.
        global_batch: samples of a step, all replicas.
    """
    return round(minutes * 60 * samples_per_second * FEWEST / global_batch)
