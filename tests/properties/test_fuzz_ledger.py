# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whatever a checkpoint has in a ledger's place, and whatever a worker says to the desk: refused by
an error of ours, or believed without a slot being in two places."""

from __future__ import annotations

import collections
import copy
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rover_kf import errors
from rover_kf.api import codec
from rover_kf.api.data import (
    DataPlan,
    DataProgress,
    LeaseRequest,
    Partition,
    RegisterData,
    SlotSpan,
)
from rover_kf.data_sharding.dispatcher import ShardDispatcher
from rover_kf.data_sharding.interval_set import IntervalSet
from rover_kf.data_sharding.ledger import LeaseLedger
from tests.support.malformed_messages import BUDGET, as_bytes, damaged, plain

WORKERS = ("0/a", "1/b")
NAMES = ("left", "right", "stream")
PLANS = (
    DataPlan("train", (Partition("left", 0, 40), Partition("right", 3, 29)), 4, epochs=2),
    DataPlan(
        "train", (Partition("left", 0, 9), Partition("stream", 5, 20, bounded=False, stage=1)), 8
    ),
)
pairs = st.tuples(st.integers(0, 12), st.integers(0, 12)).map(lambda pair: f"{pair[0]}+{pair[1]}")
texts = st.one_of(
    st.lists(pairs, max_size=4).map(",".join),
    st.text("0123456789+,- ", max_size=12),
    st.sampled_from(["", "0+" + "9" * 20, "9" * 21 + "+1", "0+" + "9" * 5000, "\u0661+1", "1+1\n"]),
)
"""Of the slots that are used, good and bad."""
by_partition = st.dictionaries(st.sampled_from((*NAMES, "strange")), texts, max_size=2)
progresses = damaged(
    st.fixed_dictionaries(
        {
            "epoch": st.integers(-1, 3),
            "done": by_partition,
            "poison": by_partition,
            "version": st.just(1),
        }
    )
)
spans = st.fixed_dictionaries(
    {
        "partition": st.sampled_from((*NAMES, "strange")),
        "begin": st.integers(-2, 45) | st.sampled_from([-(2**63), 2**63 - 1]),
        "end": st.integers(-2, 45) | st.sampled_from([-(2**63), 2**63 - 1]),
    }
)
unread = st.fixed_dictionaries({"span": spans, "reason": st.just("")})
ends = st.dictionaries(st.sampled_from(NAMES), st.integers(-2, 60) | st.just(2**63 - 1), max_size=2)
requests = st.fixed_dictionaries(
    {
        "name": st.just("train"),
        "round": st.integers(0, 2),
        "worker": st.sampled_from((*WORKERS, "1/c", "", "/", "\u0661/a", "9" * 5000, "-1/a")),
        "generation": st.integers(0, 2),
        "number": st.integers(0, 9),
        "epoch": st.integers(-1, 3),
        "taken": st.text(max_size=2),
        "wanted": st.integers(-1, 20) | st.just(2**63 - 1),
        "least": st.integers(-2, 9) | st.just(2**63 - 1),
        "done": st.lists(spans, max_size=3),
        "unread": st.lists(unread, max_size=2),
        "spoilt": st.lists(unread, max_size=1),
        "ends": ends,
    }
)


@BUDGET
@given(texts)
def test_any_text_of_ranges_is_read_or_refused(text):
    """What was read is written as text that says the same."""
    try:
        found = IntervalSet.from_text(text)
    except errors.ProtocolError:
        return
    assert IntervalSet.from_text(found.to_text()) == found
    assert len(found) <= text.count("+")


def test_a_ledger_takes_no_more_than_its_text():
    """Twenty digits of slots are one range; none of them is counted one by one."""
    plan = DataPlan("train", (Partition("left", 0, 10**19),), 4)
    tracemalloc.start()
    try:
        ledger = LeaseLedger(plan, DataProgress(done={"left": "0+" + "9" * 18}))
        assert ledger.lease("0/a", 0, 0.0)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 1 << 20


def test_a_strange_progress_is_gone_on_with_or_refused():
    """A checkpoint's: of other data, with slots twice, with text that is none."""
    counts: collections.Counter[str] = collections.Counter()

    @settings(BUDGET, max_examples=4 * BUDGET.max_examples)
    @given(st.sampled_from(PLANS), progresses)
    def check(plan, value):
        try:
            ledger = LeaseLedger(plan, codec.loads(DataProgress, as_bytes(value)), generation=1)
        except errors.RoverError as refusal:
            counts[type(refusal).__name__] += 1
            return
        counts["gone on with"] += 1
        whole(ledger)
        again = LeaseLedger(plan, ledger.progress(), generation=2)
        assert again.progress() == ledger.progress()

    check()
    print(f"a progress: {dict(counts)}")
    assert set(counts) == {"ProtocolError", "CheckpointError", "gone on with"}


def test_slots_that_a_stream_lost_are_not_done_and_set_aside():
    """Nobody writes that of slots that are still there; neither of older ones."""
    plan = DataPlan("train", (Partition("stream", 5, 20, bounded=False),), 8)
    LeaseLedger(plan, DataProgress(done={"stream": "0+1"}, poison={"stream": "1+2"}))
    with pytest.raises(errors.CheckpointError, match=r"slots 0 to 1 of .* done and set aside"):
        LeaseLedger(plan, DataProgress(done={"stream": "0+1"}, poison={"stream": "0+2"}))


def test_whatever_workers_say_no_slot_is_in_two_places():
    """With the token and a round's number: strange names, spans of nothing, ends beyond all."""
    counts: collections.Counter[str] = collections.Counter()

    @BUDGET
    @given(st.sampled_from(PLANS), st.booleans(), st.lists(damaged(requests), max_size=6))
    def check(plan, shared, values):
        desk = opened(plan, shared=shared)
        for number, value in enumerate(values):
            try:
                desk.handle_request(codec.loads(LeaseRequest, as_bytes(value)), float(number))
            except errors.RoverError as refusal:
                counts[type(refusal).__name__] += 1
            else:
                counts["answered"] += 1
            desk.tick(float(number))
            whole(desk.counters["train"].ledger)

    check()
    print(f"requests to the desk: {dict(counts)}")
    assert {"ProtocolError", "Conflict", "answered"} <= set(counts)


@BUDGET
@given(st.lists(damaged(plain(RegisterData)), max_size=3))
def test_whoever_registers_spoils_no_ledger(values):
    """A rank that nobody knows, or of another plan: known, or refused; the others' stays whole."""
    desk = opened(PLANS[0], shared=False)
    for value in values:
        try:
            desk.register(codec.loads(RegisterData, as_bytes(value)), 0.0)
        except errors.RoverError:
            continue
        whole(desk.counters["train"].ledger)


@pytest.mark.parametrize("worker", ["9" * 5000, "\u0661/a", "-1/a", "/", ""])
def test_a_worker_of_a_strange_name_is_asked_to_register(worker):
    """Nobody of that name has."""
    desk = opened(PLANS[0], shared=False)
    assert desk.handle_request(LeaseRequest("train", 1, worker, 0, 1, 0), 0.0).state == "register"


def opened(plan: DataPlan, *, shared: bool) -> ShardDispatcher:
    """A desk at which two ranks have registered, one of which holds spans."""
    desk = ShardDispatcher()
    for rank, worker in enumerate(WORKERS):
        desk.register(RegisterData(plan, 1, rank, 2, worker, DataProgress(), shared=shared), 0.0)
    assert desk.handle_request(
        LeaseRequest("train", 1, WORKERS[0], 0, 1, 0, max_spans=2), 0.0
    ).leases
    return desk


def whole(ledger: LeaseLedger | None) -> None:
    """Each slot of a partition is in exactly one place."""
    assert ledger is not None
    ledger = copy.deepcopy(ledger)
    ledger.tick(1e12)  # slots that wait for another try have no other place
    for name, lane in ledger.partitions.items():
        held = [account.held.get(name, IntervalSet()) for account in ledger.workers.values()]
        places = [lane.todo, lane.done, lane.poison, *held]
        together = IntervalSet(piece for place in places for piece in place)
        assert together.total == sum(place.total for place in places), name
        first = lane.partition.begin
        if lane.partition.bounded:
            assert list(together) == [(first, lane.partition.end)]
        else:  # what it no longer has may be done
            assert together.intersect(first, lane.end) == [(first, lane.end)]
    assert all(span.size > 0 for span in _leased(ledger))


def _leased(ledger: LeaseLedger) -> list[SlotSpan]:
    return [
        SlotSpan(name, begin, end)
        for account in ledger.workers.values()
        for name, ranges in account.held.items()
        for begin, end in ranges
    ]
