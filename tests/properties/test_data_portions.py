# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Workers of any speeds that do not wait for each other end an epoch together."""

from __future__ import annotations

import heapq
import os

from hypothesis import given, settings
from hypothesis import strategies as st

from rover_kf.api.data import DataPlan, DataProgress, Partition
from rover_kf.data_sharding.dispatcher import ShardDispatcher
from rover_kf.data_sharding.ledger import guided_chunk
from rover_kf.data_sharding.worker_view import LeaseTracker, WorkerIdentity

EXAMPLES = settings(deadline=None, derandomize="CI" in os.environ, max_examples=60)
PLAN = DataPlan("train", (Partition("", 0, 24_000),), 160, 1)
BATCH, IDLE_SECONDS = 16, 0.05


class Worker:
    """Takes batches as the loop does, in simulated time; answers come at once.

    Args:
        desk: that lends.
        rank: its own.
        world: workers.
        cost: seconds a sample.
    """

    def __init__(self, desk: ShardDispatcher, rank: int, world: int, cost: float) -> None:
        self.holder = LeaseTracker(
            PLAN, WorkerIdentity(1, rank, world, "p"), shared=True, batch_slots=BATCH
        )
        self._desk, self._cost = desk, cost
        self._batch, self.asked, self.used = None, 0, 0
        desk.register(self.holder.registration(DataProgress()), 0.0)
        self.holder.registered = True

    def act(self, now: float) -> float | None:
        """Use the batch that has just ended and begin another; seconds until then, None: over."""
        if self._batch is not None:
            self.holder.mark_used([self._batch])
            self.used += self._batch.size
        if self.holder.missing_slots(2 * PLAN.shard) or self.holder.has_reports:
            self._ask(now)
        self._batch = self.holder.claim(BATCH)
        if self._batch is not None:
            return self._cost * self._batch.size
        if not self.holder.finished:
            self._ask(now)
        return None if self.holder.finished else IDLE_SECONDS

    def _ask(self, now: float) -> None:
        wanted = -(-self.holder.missing_slots(2 * PLAN.shard) // PLAN.shard)
        self.asked += bool(wanted)
        self.holder.on_reply(self._desk.handle_request(self.holder.request(wanted), now))


@EXAMPLES
@given(st.lists(st.floats(0.001, 0.01), min_size=1, max_size=8))
def test_fast_and_slow_end_together(costs):
    """Within two batches of the slowest, and one look of whom nothing is left for; all is used
    once. Nobody asks much more often than shards are lent."""
    desk = ShardDispatcher()
    workers = [Worker(desk, rank, len(costs), cost) for rank, cost in enumerate(costs)]
    due = [(0.0, rank) for rank in range(len(costs))]
    now = 0.0
    while due:
        now, rank = heapq.heappop(due)
        pause = workers[rank].act(now)
        if pause is not None:
            heapq.heappush(due, (now + pause, rank))
    used = sum(worker.used for worker in workers)
    assert used == PLAN.partitions[0].end
    ideal = used / sum(1 / cost for cost in costs)
    assert now <= ideal + 2 * BATCH * max(costs) + 2 * IDLE_SECONDS
    # In the last four shards of each, whose portions are below the two that are held, with a batch.
    tail = 4 * PLAN.shard // BATCH + 20
    assert sum(worker.asked for worker in workers) <= used / PLAN.shard + tail * len(costs)


@EXAMPLES
@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**9), min_size=1), st.integers(1, 4096))
def test_a_portion_is_half_of_what_goes_with_the_speed(left, used, least):
    """All portions together are at most half of the rest, but for what everybody needs to go on."""
    found = [
        guided_chunk(left, worker_used=own, used=sum(used), workers=len(used), batch_slots=least)
        for own in used
    ]
    assert min(found) >= 2 * least
    assert sum(found) <= left // 2 + 2 * least * len(used)
