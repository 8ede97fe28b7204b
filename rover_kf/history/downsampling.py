# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Windows of a long run in a bounded number: neighbours that say the same become one; pure.

What lies between the first eighth and the last quarter is packed: the newest windows, to which a
throughput model is fitted, stay as they were measured. Steps, samples and time blocked by saves are
summed, so that a record says as much of the whole run as before, only less finely; a slow window
among others goes under in them.
"""

from __future__ import annotations

import collections
import math

from rover_kf.api.samples import Throughput

SAME_BATCH = 0.05
"""Log ratio up to which two global batches are the same: an epoch's last one is smaller."""
GAP_WEIGHT = 10
"""What a second between two windows counts, in which nobody trained steadily."""


def pack(windows: tuple[Throughput, ...], most: int) -> tuple[Throughput, ...]:
    """At most so many.

    Where no two neighbours are of one world and batch, the oldest of the world with the most
    windows is given up. Each that is too many costs a look at all: for some at a time.

    Args:
        windows: in the order of time.
        most: of them.
    """
    kept = list(windows)
    edge = most // 8
    while len(kept) > most:
        middle = range(edge, len(kept) - 2 * edge)
        pairs = [i for i in middle[:-1] if _are_alike(kept[i], kept[i + 1])]
        if pairs:
            best = min(pairs, key=lambda i: _distance(kept[i], kept[i + 1]))
            kept[best : best + 2] = [_joined(kept[best], kept[best + 1])]
            continue
        counts = collections.Counter(_world(window) for window in kept)
        del kept[max(middle, key=lambda i: (counts[_world(kept[i])], -i))]
    return tuple(kept)


def _world(window: Throughput) -> tuple[int, int]:
    return window.nodes, window.world_size


def _are_alike(one: Throughput, other: Throughput) -> bool:
    ratio = _batch(one) / _batch(other)
    return _world(one) == _world(other) and abs(math.log(ratio)) <= SAME_BATCH


def _distance(one: Throughput, other: Throughput) -> float:
    """Seconds that both would last as one, more where time lies between."""
    gap = max(0.0, other.started_at - one.ended_at)
    return other.ended_at - one.started_at + GAP_WEIGHT * gap


def _batch(window: Throughput) -> float:
    # A trainer that does not tell its samples is reckoned in steps.
    return window.global_batch or 1.0


def _joined(one: Throughput, other: Throughput) -> Throughput:
    """Both as one, at the pace of the one with more steps: as a median, it is that of most."""
    most = one if one.steps >= other.steps else other
    steps, samples = one.steps + other.steps, one.samples + other.samples
    seconds = [window.ended_at - window.started_at for window in (one, other)]
    share = seconds[0] / sum(seconds) if sum(seconds) > 0 else 0.5
    return Throughput(
        started_at=one.started_at,
        ended_at=other.ended_at,
        nodes=one.nodes,
        world_size=one.world_size,
        steps=steps,
        samples=samples,
        step_seconds=most.step_seconds,
        global_batch=samples / steps if samples and steps else most.global_batch,
        wait_fraction=share * one.wait_fraction + (1 - share) * other.wait_fraction,
        save_seconds=one.save_seconds + other.save_seconds,
    )
