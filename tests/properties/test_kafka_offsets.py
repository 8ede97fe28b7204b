# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What is pure of streams: which offsets hold what, where a job goes on, what is gone."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rover_kf.api.data import DataProgress, SlotSpan
from rover_kf.data_sharding.interval_set import IntervalSet
from rover_kf.data_sharding.ledger_source import SlotMarker
from rover_kf.trainer.data.kafka.fetcher import KafkaRecord, OffsetReached, fill_range
from rover_kf.trainer.data.kafka.source import committable_offsets, find_start_offsets

OFFSETS = st.sets(st.integers(0, 60), max_size=40)


def events(offsets, end, begin_):
    """A partition with records at some offsets, as a fetcher tells of it; then only its end."""
    for offset in sorted(offsets):
        if offset >= begin_:
            yield KafkaRecord("clicks", 0, offset, b"%d" % offset)
    while True:
        yield OffsetReached(end)


@settings(max_examples=300)
@given(OFFSETS, st.integers(0, 60), st.integers(1, 20), st.integers(0, 9))
def test_each_offset_of_a_span_gets_its_record_or_nothing(offsets, first, size, further):
    """Gaps anywhere, spans that end in one: as many as offsets, each record in its own place."""
    span = SlotSpan("clicks/0", first, first + size)
    end = max([span.end, *(offset + 1 for offset in offsets)]) + further
    found = list(fill_range(span, events(offsets, end, first), lambda record: record.offset))
    assert len(found) == size
    for offset, sample in zip(range(span.begin, span.end), found, strict=True):
        assert sample == (offset if offset in offsets else SlotMarker.EMPTY)


@settings(max_examples=200)
@given(OFFSETS, st.lists(st.integers(1, 15), min_size=1, max_size=8))
def test_spans_one_after_the_other_read_what_one_span_would(offsets, sizes):
    """Wherever shards are cut: every record once."""
    found, at = [], 0
    for size in sizes:
        span = SlotSpan("clicks/0", at, at + size)
        found += fill_range(span, events(offsets, 200, at), lambda record: record.offset)
        at += size
    assert [x for x in found if x is not SlotMarker.EMPTY] == sorted(o for o in offsets if o < at)


def test_a_span_takes_no_record_more_than_it_has():
    """The next span begins with the one after it, which the fetcher still has to give."""
    stream = events({0, 1, 2, 3}, 4, 0)
    assert (
        len(list(fill_range(SlotSpan("clicks/0", 0, 2), stream, lambda record: record.offset))) == 2
    )
    assert next(stream).offset == 2


def progress(done, poison=()):
    used, aside = IntervalSet(), IntervalSet()
    for offset in done:
        used.add(offset, offset + 1)
    for offset in set(poison) - set(done):
        aside.add(offset, offset + 1)
    return DataProgress(
        0, {"clicks/0": used.to_text()} if used else {}, {"clicks/0": aside.to_text()}
    )


@settings(max_examples=400)
@given(OFFSETS, OFFSETS, st.integers(0, 70), st.integers(0, 20))
def test_a_job_goes_on_behind_what_is_used_and_tells_what_is_gone(done, poison, oldest, start):
    """Of every offset that retention took it is known whether the surviving model has seen it."""
    seen = progress(done, poison)
    first = max(oldest, start)
    found = find_start_offsets(seen, {"clicks/0": oldest}, {"clicks/0": first})
    used = IntervalSet.from_text(found.progress.done.get("clicks/0", ""))
    lost = {offset for span in found.lost for offset in range(span.begin, span.end)}
    at = found.offsets["clicks/0"]
    if not done:
        assert not lost
        assert at == first
        return
    assert lost == set(range(oldest)) - done - poison
    assert at == min(set(range(oldest, 200)) - done)
    assert used.gaps(0, at) == []
    assert not any(used.intersect(o, o + 1) for o in range(oldest, 70) if o not in done)


@settings(max_examples=200)
@given(OFFSETS, OFFSETS)
def test_a_group_commits_nothing_that_is_not_used(done, poison):
    """Its offset is the first one that is neither used nor set aside, whatever was used behind."""
    found = committable_offsets(progress(done, poison))
    if done or poison:
        assert found["clicks/0"] == min(set(range(200)) - done - poison)


def test_a_partition_that_was_added_later_is_read_as_a_whole():
    """A job that began at the end of its topic must not skip what came into a new partition."""
    found = find_start_offsets(
        DataProgress(0, {"clicks/0": "0+50"}),
        {"clicks/0": 0, "clicks/1": 3},
        {"clicks/0": 80, "clicks/1": 90},
    )
    assert found.offsets == {"clicks/0": 50, "clicks/1": 3}
    assert found.lost == ()
