# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The desk over HTTP: who is refused, what is set aside, and what a status and metrics tell."""

from __future__ import annotations

import asyncio
import dataclasses
import time

import pytest
from aiohttp import test_utils

from rover_kf import errors
from rover_kf.api import codec, error_wire, names
from rover_kf.api.data import (
    DataPlan,
    DataProgress,
    LeaseReply,
    Partition,
    ProgressRequest,
    RegisterReply,
    SlotSpan,
    UnreadableSpan,
)
from rover_kf.coordinator.data_service import DataLeaseService
from rover_kf.data_sharding.worker_view import LeaseTracker, WorkerIdentity
from rover_kf.sidecar.event_log import EventLog
from rover_kf.sidecar.http.app import make_application

PLAN = DataPlan("train", (Partition("", 0, 100),), 10)


class Served:
    """A desk, and ranks that ask it."""

    def __init__(self, client: test_utils.TestClient) -> None:
        self._client = client

    async def post(self, path, message, reply):
        answer = await self._client.post(path, data=codec.dumps(message))
        body = await answer.read()
        if answer.status != 200:
            raise error_wire.decode_error(answer.status, body, unreadable=errors.RoverError)
        return codec.loads(reply, body)

    async def register(self, holder, plan=PLAN):
        told = dataclasses.replace(holder.registration(DataProgress()), plan=plan)
        holder.on_registered(await self.post(names.PATH_DATA_REGISTER, told, RegisterReply))

    async def lease(self, holder, count=2):
        reply = await self.post(names.PATH_DATA_LEASE, holder.request(count), LeaseReply)
        holder.on_reply(reply)
        return reply


def serve(talk):
    """Run a test's talk with a desk; what its status and its story are then."""

    async def main():
        story = EventLog("train-worker-0")
        leases = DataLeaseService(story)
        async with test_utils.TestClient(
            test_utils.TestServer(make_application(leases.routes(), None))
        ) as client:
            await talk(Served(client))
        leases.tick(0.0)
        return leases.status(), [event.message for event in story.after(0)]

    return asyncio.run(main())


def holder(rank, round_=1, world=2):
    return LeaseTracker(PLAN, WorkerIdentity(round_, rank, world, "p"), shared=False)


def test_ranks_wait_for_each_other_and_get_different_slots():
    """The ledger begins when both have told what they have used."""

    async def talk(served):
        first, second = holder(0), holder(1)
        assert (await served.lease(first)).state == "register"
        await served.register(first)
        assert (await served.lease(first)).state == "wait"
        await served.register(second)
        assert (await served.lease(first)).leases == (SlotSpan("", 0, 10), SlotSpan("", 10, 20))
        assert (await served.lease(second)).leases == (SlotSpan("", 20, 30), SlotSpan("", 30, 40))
        first.mark_used([first.claim(10)])
        await served.lease(first, 0)

    ((status,), story) = serve(talk)
    assert (status.slots, status.done, status.outstanding) == (100, 10, 30)
    assert [(w.worker, w.used, w.outstanding) for w in status.workers] == [
        ("0/p", 10, 10),
        ("1/p", 0, 20),
    ]
    assert story == []


def test_a_record_of_which_nothing_can_be_made_is_told_by_its_place():
    """Once, however often the request comes: its offset is used all the same."""

    async def talk(served):
        clicks = DataPlan("clicks", (Partition("clicks/1", 5, 20, bounded=False),), 10)
        one = LeaseTracker(clicks, WorkerIdentity(1, 0, 1, "p"), shared=False)
        await served.register(one, clicks)
        await served.lease(one)
        span = one.claim(3)
        one.mark_used([span])
        bad = [UnreadableSpan(SlotSpan("clicks/1", 6, 7), "JSONDecodeError")]
        one.report_unusable([*bad, UnreadableSpan(SlotSpan("clicks/1", 7, 8), "KeyError")])
        request = one.request(0)
        for _ in range(2):
            reply = await served.post(names.PATH_DATA_LEASE, request, LeaseReply)
        one.on_reply(reply)
        assert not one.has_reports

    ((status,), story) = serve(talk)
    assert (status.done, status.poisoned) == (3, 2)
    assert [poison.span.begin for poison in status.poison] == [6, 7]
    assert story == [
        "data set 'clicks': record 'clicks/1' 6 could not be used and is left out: JSONDecodeError",
        "data set 'clicks': record 'clicks/1' 7 could not be used and is left out: KeyError",
    ]


def test_a_late_message_of_a_dead_process_displaces_nobody():
    """Its successor came with a ticket; the slots that it has stay its own."""

    async def talk(served):
        old, new = (
            LeaseTracker(PLAN, WorkerIdentity(1, 0, 1, name), shared=True)
            for name in ("old", "new")
        )
        late = old.registration(DataProgress())
        await served.register(old)
        await served.register(new)
        assert not new.registered
        await served.register(new)
        assert new.registered
        held = (await served.lease(new)).leases
        for ticket in ("", "of another coordinator"):
            message = dataclasses.replace(late, ticket=ticket)
            reply = await served.post(names.PATH_DATA_REGISTER, message, RegisterReply)
            assert reply.ticket
        assert (await served.lease(new)).leases[0].begin == held[-1].end

    ((status,), _) = serve(talk)
    assert [share.worker for share in status.workers] == ["0/new"]


def test_rounds_that_are_over_and_other_data_are_refused():
    """By what differs, and with what to do."""

    async def talk(served):
        await served.register(holder(0, round_=2))
        with pytest.raises(errors.Conflict, match="round 1 is over"):
            await served.register(holder(1))
        with pytest.raises(errors.InputError, match="all ranks must read the same data"):
            await served.register(
                holder(1, round_=2), dataclasses.replace(PLAN, fingerprint="other")
            )
        empty = DataPlan("none", (Partition("", 0, 0),), 10)
        with pytest.raises(errors.InputError, match="is empty"):
            await served.register(holder(0), empty)
        with pytest.raises(errors.Conflict, match="no ledger"):
            await served.post(names.PATH_DATA_PROGRESS, ProgressRequest("train", 2), DataProgress)

    assert serve(talk) == ((), [])


def test_the_story_has_who_comes_and_goes():
    """Of a shared ledger's workers: once each, also where the ledger begins anew; a worker whose
    leases have expired has gone. The chief takes none."""
    told, story = [], EventLog("train-chief-0")
    leases = DataLeaseService(story)

    def shared(rank):
        return LeaseTracker(PLAN, WorkerIdentity(0, rank, rank + 1, "p"), shared=True)

    async def main():
        chief, workers = shared(0), [shared(1), shared(3)]
        async with test_utils.TestClient(
            test_utils.TestServer(make_application(leases.routes(), None))
        ) as client:
            served = Served(client)
            for each in (chief, *workers):
                await served.register(each)
            for each in workers:
                await served.lease(each)
            now = time.monotonic()
            leases.tick(now)
            told.append(len(story.after(0)))
            again = shared(0)  # another program of the chief
            await served.register(again)
            await served.register(again)
            leases.tick(now + 1)
            told.append(len(story.after(0)))
            for each in workers:
                await served.lease(each)  # hears of another ledger
                await served.register(each)
                await served.lease(each)
            leases.tick(now + 2)
            leases.tick(now + 100)

    asyncio.run(main())
    assert told == [2, 2]
    assert [event.message for event in story.after(0)] == [
        "data set 'train': worker 0 takes records; 2 do now",
        "data set 'train': worker 2 takes records; 2 do now",
        "data set 'train': worker 0 takes no more records; 0 do now",
        "data set 'train': worker 2 takes no more records; 0 do now",
    ]
