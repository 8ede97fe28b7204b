# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What an action did to the training, from the marks before and after it; pure."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Sequence

from benchmarks.elastic_bench.journal import Track


@dataclasses.dataclass(frozen=True, slots=True)
class World:
    """Processes that were connected to each other."""

    name: int
    size: int
    tracks: tuple[Track, ...]

    @property
    def pods(self) -> set[str]:
        """Of its processes."""
        return {track.process.pod for track in self.tracks}

    def steps_each(self) -> int:
        """Steps that every one of its ranks has finished at least; 0 while one is missing."""
        if len({track.process.rank for track in self.tracks}) < self.size:
            return 0
        return min(len(track.steps) for track in self.tracks)

    def all_stepped_at(self) -> float:
        """When the last of its ranks had finished its first step."""
        return max(track.steps[0].at for track in self.tracks)


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """One measured action; every duration is in seconds."""

    seconds: float
    """From the action until every rank of a new world of the wanted size has finished a step."""
    survivors: float
    """Until every pod that the action left alone has finished a step in a new world."""
    pause: float
    """The longest time in between without any finished step."""
    steps_lost: int
    """Steps that the old world had finished and the first new one does again."""


def worlds(tracks: Iterable[Track]) -> tuple[World, ...]:
    """The tracks by world, in the order of their first steps; those without a step come last."""
    groups: dict[int, list[Track]] = {}
    for track in tracks:
        groups.setdefault(track.process.world, []).append(track)
    made = [World(name, found[0].process.size, tuple(found)) for name, found in groups.items()]
    return tuple(sorted(made, key=_begun))


def trains(tracks: Iterable[Track], size: int, steps: int) -> World | None:
    """The newest world, if it has that size and each rank has finished so many steps."""
    stepped = [world for world in worlds(tracks) if any(track.steps for track in world.tracks)]
    newest = stepped[-1] if stepped else None
    return newest if newest and newest.size == size and newest.steps_each() >= steps else None


def outcome(
    tracks: Sequence[Track], *, before: Collection[int], acted: float, size: int, left: set[str]
) -> Outcome | None:
    """What became of an action; None until the wanted world steps.

    Args:
        tracks: everything written so far.
        before: names of the worlds that were there before the action.
        acted: when it was done, Unix seconds.
        size: of the wanted world.
        left: pods that the action leaves alone.
    """
    found = worlds(tracks)
    new = [world for world in found if world.name not in before]
    whole = [world for world in new if world.size == size and world.steps_each()]
    if not whole:
        return None
    full = min(world.all_stepped_at() for world in whole)
    again = {
        pod: min((at for world in new for at in _stepped(world, pod)), default=full) for pod in left
    }
    times = sorted(step.at for track in tracks for step in track.steps if step.at < full)
    shown = [at for at in times if at >= acted]
    last = max((at for at in times if at < acted), default=acted)
    points = [last, *shown, full]
    first = next(world for world in new if any(track.steps for track in world.tracks))
    old = [world for world in found if world.name in before]
    return Outcome(
        seconds=full - acted,
        survivors=max(again.values(), default=full) - acted,
        pause=max(after - ahead for ahead, after in itertools.pairwise(points)),
        steps_lost=max(0, _highest(old) - max(track.process.resumed for track in first.tracks)),
    )


def goodput(tracks: Iterable[Track], *, begun: float, ended: float, step_seconds: float) -> float:
    """Part of a time in which new steps were made, by what a step takes undisturbed.

    Args:
        tracks: everything written.
        begun: of the time, Unix seconds.
        ended: of it.
        step_seconds: of an undisturbed step.
    """
    every = [step for track in tracks for step in track.steps]
    before = max((step.number for step in every if step.at <= begun), default=0)
    after = max((step.number for step in every if step.at <= ended), default=before)
    return (after - before) * step_seconds / (ended - begun)


def step_seconds(track: Track) -> float:
    """The middle of the times from one step to the next."""
    gaps = sorted(b.at - a.at for a, b in itertools.pairwise(track.steps))
    return gaps[len(gaps) // 2]


def _begun(world: World) -> float:
    return min((track.steps[0].at for track in world.tracks if track.steps), default=float("inf"))


def _stepped(world: World, pod: str) -> list[float]:
    return [track.steps[0].at for track in world.tracks if track.process.pod == pod and track.steps]


def _highest(found: Iterable[World]) -> int:
    numbers = (step.number for world in found for track in world.tracks for step in track.steps)
    return max(numbers, default=0)
