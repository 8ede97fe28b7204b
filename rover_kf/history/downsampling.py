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


def downsample(windows: tuple[Throughput, ...], max_windows: int) -> tuple[Throughput, ...]:
    """At most so many.

    Where no two neighbours are of one world and batch, the oldest of the world with the most
    windows is given up. Each that is too many costs a look at all: for some at a time.

    Args:
        windows: in the order of time.
        max_windows: of them.
    """
    kept = list(windows)
    edge = max_windows // 8
    while len(kept) > max_windows:
        middle = range(edge, len(kept) - 2 * edge)
        pairs = [i for i in middle[:-1] if _can_merge(kept[i], kept[i + 1])]
        if pairs:
            best = min(pairs, key=lambda i: _distance(kept[i], kept[i + 1]))
            kept[best : best + 2] = [_merge(kept[best], kept[best + 1])]
            continue
        counts = collections.Counter(_world(window) for window in kept)
        del kept[max(middle, key=lambda i: (counts[_world(kept[i])], -i))]
    return tuple(kept)


def _world(window: Throughput) -> tuple[int, int]:
    return window.nodes, window.world_size


def _can_merge(left: Throughput, right: Throughput) -> bool:
    ratio = _batch(left) / _batch(right)
    return _world(left) == _world(right) and abs(math.log(ratio)) <= SAME_BATCH


def _distance(left: Throughput, right: Throughput) -> float:
    """Seconds that both would last as one, more where time lies between."""
    gap = max(0.0, right.started_at - left.ended_at)
    return right.ended_at - left.started_at + GAP_WEIGHT * gap


def _batch(window: Throughput) -> float:
    # A trainer that does not tell its samples is reckoned in steps.
    return window.global_batch or 1.0


def _merge(left: Throughput, right: Throughput) -> Throughput:
    """Both as one, at the pace of the one with more steps: as a median, it is that of most."""
    most = left if left.steps >= right.steps else right
    steps, samples = left.steps + right.steps, left.samples + right.samples
    seconds = [window.ended_at - window.started_at for window in (left, right)]
    share = seconds[0] / sum(seconds) if sum(seconds) > 0 else 0.5
    return Throughput(
        started_at=left.started_at,
        ended_at=right.ended_at,
        nodes=left.nodes,
        world_size=left.world_size,
        steps=steps,
        samples=samples,
        step_seconds=most.step_seconds,
        global_batch=samples / steps if samples and steps else most.global_batch,
        wait_fraction=share * left.wait_fraction + (1 - share) * right.wait_fraction,
        save_seconds=left.save_seconds + right.save_seconds,
    )
