# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A shared ledger that goes back to a checkpoint while workers go on: they follow it."""

from __future__ import annotations

from rover_kf.api.data import DataPlan, DataProgress, Partition
from rover_kf.data_sharding.dispatcher import ShardDispatcher
from rover_kf.data_sharding.worker_view import LeaseTracker, WorkerIdentity

PLAN = DataPlan("train", (Partition("", 0, 8),), 4, epochs=3)


def joined(desk, rank, progress=None):
    """A process of that rank, known at the desk."""
    holder = LeaseTracker(
        PLAN, WorkerIdentity(0, rank, rank + 1, f"p{id(progress)}"), shared=True, batch_slots=2
    )
    registered(desk, holder, progress)
    return holder


def registered(desk, holder, progress=None):
    """With a ticket, if there was another process of the rank."""
    while not holder.registered:
        holder.on_registered(desk.register(holder.registration(progress or DataProgress()), 0.0))


def asked(desk, holder, count=1):
    """A request and its answer."""
    holder.on_reply(desk.handle_request(holder.request(count), 0.0))
    registered(desk, holder)


def all_of_an_epoch(desk, holder):
    """Everything is lent to one worker, and done."""
    while not holder.finished:
        asked(desk, holder)
        while (span := holder.claim(2)) is not None:
            holder.mark_used([span])
    holder.next_epoch()


def test_a_worker_goes_back_with_the_ledger():
    """The chief's next program begins in an epoch that the worker has left: without following it
    the worker would wait for the next one for ever. What it holds is undone."""
    desk = ShardDispatcher()
    joined(desk, 0)
    worker = joined(desk, 1)
    all_of_an_epoch(desk, worker)
    asked(desk, worker)
    held = worker.claim(2)
    assert (worker.epoch, worker.ledger_epoch, held.size) == (1, 1, 2)
    joined(desk, 0, DataProgress(0, {"": "0+2"}))  # another program, with its checkpoint
    asked(desk, worker)  # hears of another ledger
    asked(desk, worker)
    assert worker.claim(2) is None
    assert worker.idle
    assert worker.ledger_epoch == 0
    worker.rejoin_ledger()
    worker.mark_used([held])
    assert not worker.has_reports
    asked(desk, worker)
    assert worker.epoch == 0
    again = worker.claim(2)
    assert again.begin == 2
    worker.mark_used([again])
    all_of_an_epoch(desk, worker)
    assert desk.progress("train", 0).epoch == 0
    asked(desk, worker)
    assert desk.progress("train", 0).epoch == 1


def test_who_has_gone_stays_away():
    """A ledger that begins anew knows those that the one before knew, and no others."""
    desk = ShardDispatcher()
    joined(desk, 0)
    gone, here = joined(desk, 1), joined(desk, 2)
    asked(desk, gone)
    desk.tick(100.0)
    here.on_reply(desk.handle_request(here.request(1), 100.0))
    joined(desk, 0, DataProgress())
    known = desk.counters["train"].ledger.workers
    assert {worker.partition("/")[0] for worker in known} == {"0", "2"}
