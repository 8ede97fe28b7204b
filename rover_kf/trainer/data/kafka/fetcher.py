# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Reads ranges of offsets, one after the other, in one process: waits for brokers that are away."""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Union, cast

from rover_kf import errors
from rover_kf.api.data import SlotSpan
from rover_kf.data_sharding.ledger_source import SlotMarker
from rover_kf.trainer.data.kafka.client import KafkaClient


@dataclasses.dataclass(frozen=True, slots=True)
class KafkaRecord:
    """A record as a topic has it."""

    topic: str
    partition: int
    offset: int
    value: bytes | None
    """None: a tombstone."""
    key: bytes | None = None
    timestamp: int = 0
    """Milliseconds since 1970."""
    headers: tuple[tuple[str, bytes], ...] = ()

    @property
    def name(self) -> str:
        """Where it is to be found: ``clicks/3@1207``."""
        return f"{self.topic}/{self.partition}@{self.offset}"


@dataclasses.dataclass(frozen=True, slots=True)
class OffsetReached:
    """A sign that no other record stands before this offset."""

    offset: int


Event = Union[KafkaRecord, OffsetReached]  # noqa: UP007 - evaluated when it is imported, also by 3.10
Decode = Callable[[KafkaRecord], Any]


def fill_range(span: SlotSpan, events: Iterable[Event], decode: Decode) -> Iterator[Any]:
    """Yield one item per offset of a span: the decoded record, or ``SlotMarker.EMPTY``.

    Compaction, aborted transactions and the markers of transactions leave offsets without a record.
    Events begin at the span's begin, with growing offsets; the last one taken ends the span.
    """
    at = span.begin
    for event in events:
        upto = min(event.offset, span.end)
        while at < upto:
            yield SlotMarker.EMPTY
            at += 1
        if isinstance(event, KafkaRecord) and at < span.end:
            yield decode(event)
            at += 1
        if at >= span.end:
            return


if TYPE_CHECKING:
    import confluent_kafka

_AT_ONCE, _POLL_SECONDS = 500, 0.5
_SHORT_SECONDS = 20.0
"""How long a partition may seem to end before it did."""

OnLost = Callable[[str, int, int], int]
"""Returns where to resume after a missing offset, or raises; the same offset: none is lost."""


class Fetcher:
    """A reader of ranges of offsets for one process."""

    def __init__(self, client: KafkaClient, on_lost: OnLost) -> None:
        self._client, self._on_lost = client, on_lost
        self._consumer: confluent_kafka.Consumer | None = None
        self._position: tuple[str, int, int] | None = None
        """Topic, partition and offset at which the next event is due."""
        self._messages: collections.deque[Any] = collections.deque()
        self._short_since: float | None = None

    def events(self, topic: str, partition: int, begin: int, end: int) -> Iterator[Event]:
        """Yield what a range of offsets has, up to a sign that no more comes.

        A range that begins at the end of the last one costs no request. The partition had all of
        the range when its end was requested.

        Raises:
            StreamLost: the brokers refuse, or records are gone and that is an error.
        """
        if self._position != (topic, partition, begin):
            self._seek(topic, partition, begin)
        while True:
            message = self._next(topic, partition, end)
            if message.error() is None:
                self._short_since = None
                self._position = (topic, partition, message.offset() + 1)
                yield _record(message)
                continue
            offset = self._handle_error(message, topic, partition, end)
            if offset is not None:
                yield OffsetReached(offset)

    def _handle_error(self, message: Any, topic: str, partition: int, end: int) -> int | None:
        """Take what is no record; the offset up to which there is none, if it says that."""
        error, kafka = message.error(), self._client.library.KafkaError
        offset: int = message.offset()
        if error.code() == kafka._PARTITION_EOF:  # noqa: SLF001 - a public name of the client
            if offset >= end:
                return offset
            self._short_since = self._short_since or time.monotonic()
            return None
        if error.code() == kafka._AUTO_OFFSET_RESET:  # noqa: SLF001 - the same
            assert self._position is not None  # noqa: S101 - a record was due
            gone, self._position = self._position[2], None
            again = self._on_lost(topic, partition, gone)
            since = self._short_since or time.monotonic()
            self._seek(topic, partition, again)
            if again == gone:
                self._short_since = since
                self._check_short(topic, partition)
                time.sleep(_POLL_SECONDS)
            return again
        self._client.outage.reason = error.str()
        self._client.check(error, f"reading {topic}/{partition}")
        return None

    def _next(self, topic: str, partition: int, end: int) -> Any:
        assert self._consumer is not None  # noqa: S101 - made when a place was gone to
        while not self._messages:
            # It waits until it has so many, although they are not there yet.
            left = end - self._position[2] if self._position else 1
            most = min(max(left, 1), _AT_ONCE)
            self._messages.extend(self._consumer.consume(most, _POLL_SECONDS))
            if not self._messages:
                self._client.outage.report_waiting(f"reading {topic}/{partition}")
                self._check_short(topic, partition)
        message = self._messages.popleft()
        if message.error() is None:
            self._client.outage.end()
        return message

    def _check_short(self, topic: str, partition: int) -> None:
        # A broker that has just started may tell an older end for a moment.
        if self._short_since and time.monotonic() - self._short_since > _SHORT_SECONDS:
            raise errors.StreamLost(
                f"{topic}/{partition} ends before offset "
                f"{self._position and self._position[2]}, and "
                "went further before: its brokers have lost records (unclean leader election?), or "
                "the topic was made anew; begin a new job, or leave the data out of the state"
            )

    def _seek(self, topic: str, partition: int, begin: int) -> None:
        if self._consumer is None:
            self._consumer = self._client.consumer({"fetch.error.backoff.ms": 200})
        # Ownership is the ledger's: the group has no part in it.
        self._consumer.assign([self._client.library.TopicPartition(topic, partition, begin)])
        self._messages.clear()
        self._short_since = None
        self._position = (topic, partition, begin)

    def close(self) -> None:
        """Release the brokers."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer, self._position = None, None


def _record(message: confluent_kafka.Message) -> KafkaRecord:
    return KafkaRecord(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        value=message.value(),
        key=message.key(),
        timestamp=message.timestamp()[1],
        headers=tuple(cast("list[tuple[str, bytes]]", message.headers() or [])),
    )
