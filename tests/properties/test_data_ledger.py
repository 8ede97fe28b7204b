# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The ledger beside a list of every slot: whatever is asked in whatever order, none is in two
places, none is lost, and the epoch is finished when each is done or set aside."""

from __future__ import annotations

import collections
import os
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rover_kf import errors
from rover_kf.api import codec
from rover_kf.api.data import DataPlan, DataProgress, Partition, SlotSpan
from rover_kf.data_sharding.interval_set import IntervalSet
from rover_kf.data_sharding.ledger import DUPLICATE, LATE, STALE, LeaseLedger, LeaseTerms

EXAMPLES = settings(deadline=None, derandomize="CI" in os.environ)
WORKERS = ("a", "b", "c")
edges = st.tuples(st.integers(0, 60), st.integers(0, 60))


@EXAMPLES
@given(st.lists(st.tuples(st.booleans(), edges), max_size=30), edges)
def test_ranges_are_a_set_of_numbers(changes, asked):
    """Whatever is put in and taken out: the numbers are those of a set, in the fewest ranges."""
    ranges, known = IntervalSet(), set()
    for puts, (begin, end) in changes:
        numbers = set(range(begin, end))
        changed = ranges.add(begin, end) if puts else ranges.remove(begin, end)
        assert changed == len(numbers - known if puts else numbers & known)
        known = known | numbers if puts else known - numbers
    assert {n for begin, end in ranges for n in range(begin, end)} == known
    assert ranges.total == len(known)
    assert len(ranges) == sum(n - 1 not in known for n in known)
    inside, outside = ranges.intersect(*asked), ranges.gaps(*asked)
    assert {n for b, e in inside for n in range(b, e)} == known & set(range(*asked))
    assert {n for b, e in outside for n in range(b, e)} == set(range(*asked)) - known
    assert IntervalSet.from_text(ranges.to_text()) == ranges == ranges.copy()


@pytest.mark.parametrize("text", ["1", "1+", "+1", "1+0", "a+1", "1+1,", "-1+2"])
def test_what_is_no_progress_is_refused(text):
    """By what it is."""
    with pytest.raises(errors.ProtocolError, match="is no range"):
        IntervalSet.from_text(text)


class Model:
    """A ledger, and each slot's place as a plain list says it."""

    def __init__(self, size: int, shard: int, tries: int, seconds: float | None) -> None:
        self.plan = DataPlan("train", (Partition("", 0, size),), shard, epochs=2)
        self.terms = LeaseTerms(seconds, tries, retry_seconds=2.0)
        self.ledger = LeaseLedger(self.plan, generation=1, terms=self.terms)
        self.place = ["todo"] * size
        self.now, self.generation = 0.0, 1
        self.expires = dict.fromkeys(WORKERS, 0.0)
        self.counts: collections.Counter[str] = collections.Counter()
        self.saved, self.saved_place = self.ledger.progress(), self.place[:]

    def act(self, operation: int, number: int) -> None:
        """One operation; a byte says which, another one on what."""
        worker = WORKERS[number % 3]
        name = OPERATIONS[operation % len(OPERATIONS)]
        self.counts[name] += 1
        getattr(self, f"_{name}")(worker, number)
        self.check()

    def _lease(self, worker: str, number: int) -> None:
        spans = self.ledger.lease(worker, self.generation, self.now, number % 4 + 1)
        self._heard(worker)
        for span in spans:
            assert 0 < span.size <= self.plan.shard
            assert span.begin // self.plan.shard == (span.end - 1) // self.plan.shard
            for slot in range(span.begin, span.end):
                assert self.place[slot] == "todo"
                self.place[slot] = worker
        assert spans or "todo" not in self.place

    def _report(self, worker: str, number: int) -> None:
        begin = number % (len(self.place) + 1)
        span = SlotSpan("", begin, min(begin + number % 7 + 1, len(self.place)))
        refused = self.ledger.report(worker, self.generation, [span])
        wrong = {}
        for slot in range(span.begin, span.end):
            if self.place[slot] in (worker, "todo"):
                self.place[slot] = "done"
            else:
                wrong[slot] = self.place[slot] == "done"
        told = {slot: r.reason for r in refused for slot in range(r.span.begin, r.span.end)}
        assert told.keys() == wrong.keys()
        for refusal in refused:
            slots = [wrong[s] for s in range(refusal.span.begin, refusal.span.end)]
            assert refusal.reason == (DUPLICATE if all(slots) else LATE)

    def _stale(self, worker: str, number: int) -> None:
        span = SlotSpan("", 0, min(number % 7 + 1, len(self.place)))
        other = self.generation - 1
        assert [r.reason for r in self.ledger.report(worker, other, [span])] == [STALE]
        failed = self.ledger.report_unreadable(worker, other, span, self.now, "")
        assert failed is not None
        assert failed.reason == STALE
        with pytest.raises(errors.Conflict):
            self.ledger.lease(worker, other, self.now)

    def _fail(self, worker: str, number: int) -> None:
        held = [slot for slot, place in enumerate(self.place) if place == worker]
        if not held:
            refusal = self.ledger.report_unreadable(
                worker, self.generation, SlotSpan("", 0, 1), self.now, "broken"
            )
            assert refusal is not None
            assert refusal.reason == LATE
            return
        begin = end = held[number % len(held)]
        while end in held and end // self.plan.shard == begin // self.plan.shard:
            end += 1
        before = self.ledger.poisoned
        self.ledger.report_unreadable(
            worker, self.generation, SlotSpan("", begin, end), self.now, "broken"
        )
        aside = self.ledger.poisoned is not before
        for slot in range(begin, end):
            self.place[slot] = "poison" if aside else "later"
        if aside:
            assert self.ledger.poisoned[-1].tries >= self.terms.tries
            assert self.ledger.poisoned[-1].reason == "broken"

    def _pass_time(self, _: str, number: int) -> None:
        self.now += number % 5
        self.ledger.tick(self.now)
        lost = {w for w in WORKERS if self.terms.lease_seconds and self.expires[w] < self.now}
        self.place = ["todo" if place in lost else place for place in self.place]
        due = self.ledger.partitions[""].todo
        for slot, place in enumerate(self.place):
            if place == "later" and due.intersect(slot, slot + 1):
                self.place[slot] = "todo"

    def _gone(self, worker: str, _: int) -> None:
        self.ledger.remove_worker(worker)
        self.place = ["todo" if place == worker else place for place in self.place]

    def _save(self, _: str, __: int) -> None:
        self.saved = codec.loads(DataProgress, codec.dumps(self.ledger.progress()))
        self.saved_place = self.place[:]

    def _roll_back(self, _: str, __: int) -> None:
        self.generation += 1
        self.ledger = LeaseLedger(
            self.plan, self.saved, generation=self.generation, terms=self.terms
        )
        kept = ("done", "poison")
        self.place = [place if place in kept else "todo" for place in self.saved_place]

    def _turn(self, _: str, __: int) -> None:
        if not self.ledger.finished:
            with pytest.raises(errors.Conflict):
                self.ledger.next_epoch()
            return
        self.ledger.next_epoch()
        self.place = ["todo"] * len(self.place)

    def _heard(self, worker: str) -> None:
        if self.terms.lease_seconds is not None:
            self.expires[worker] = self.now + self.terms.lease_seconds

    def check(self) -> None:
        """Every slot is where the list has it."""
        lane = self.ledger.partitions[""]
        for name, ranges in [("todo", lane.todo), ("done", lane.done), ("poison", lane.poison)]:
            assert list(slots(ranges)) == [s for s, place in enumerate(self.place) if place == name]
        for worker in WORKERS:
            account = self.ledger.workers.get(worker)
            held = account.held.get("", IntervalSet()) if account else IntervalSet()
            assert list(slots(held)) == [s for s, p in enumerate(self.place) if p == worker]
        assert self.ledger.finished == all(place in ("done", "poison") for place in self.place)


OPERATIONS = (
    *("lease", "lease", "lease", "report", "report", "report", "report", "fail", "pass_time"),
    *("gone", "save", "roll_back", "turn", "stale"),
)


def slots(ranges: IntervalSet) -> Iterator[int]:
    """One by one."""
    return (slot for begin, end in ranges for slot in range(begin, end))


def test_every_slot_is_in_one_place():
    """20,000 operations in any order beside a plain list."""
    counts: collections.Counter[str] = collections.Counter()

    @settings(EXAMPLES, max_examples=100)
    @given(
        st.integers(1, 24),
        st.integers(1, 9),
        st.integers(1, 3),
        st.sampled_from([None, 3.0]),
        st.binary(min_size=400, max_size=500),
    )
    def live(size: int, shard: int, tries: int, seconds: float | None, choices: bytes) -> None:
        model = Model(size, shard, tries, seconds)
        for operation, number in zip(choices[::2], choices[1::2], strict=False):
            model.act(operation, number)
        counts.update(model.counts)

    live()
    print(f"{counts.total()} operations: {dict(counts)}")
    assert counts.total() >= 20_000
    assert all(counts[name] for name in OPERATIONS)
