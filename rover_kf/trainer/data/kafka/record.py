# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A record of a topic, and how the records of a range fill its offsets; pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Union

from rover_kf.api.data import SlotSpan
from rover_kf.data_sharding.ledger_source import SlotMarker


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
