# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Topics as partitions without an end, whose slots are offsets: what is lent out of Kafka."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rover_kf import errors
from rover_kf.api.data import DataProgress, Partition, SlotSpan
from rover_kf.data_sharding.interval_set import IntervalSet
from rover_kf.data_sharding.ledger_source import UnusableRecord
from rover_kf.trainer.data.kafka.client import KafkaClient, KafkaConnection, load
from rover_kf.trainer.data.kafka.fetcher import Decode, Fetcher, KafkaRecord, fill_range


@dataclasses.dataclass(frozen=True, slots=True)
class StartOffsets:
    """Where a job reads each partition."""

    progress: DataProgress
    """With all that nobody has to read."""
    offsets: Mapping[str, int]
    """The first one of each partition that is still to be read."""
    lost: tuple[SlotSpan, ...]
    """Not used, and not there any more."""


def find_start_offsets(
    restored: DataProgress, oldest: Mapping[str, int], start: Mapping[str, int]
) -> StartOffsets:
    """Compute where a job resumes, and what is lost.

    ``restored`` is empty where nothing was restored. ``oldest`` has the first offset that a
    partition still has, ``start`` the one at which a new job begins. What precedes the start counts
    as used, so that a state shows where its job began. A resumed job reads new partitions as a
    whole.
    """
    known = {name: IntervalSet.from_text(text) for name, text in restored.done.items()}
    lost: list[SlotSpan] = []
    offsets: dict[str, int] = {}
    for name, first in oldest.items():
        done = known.setdefault(name, IntervalSet())
        if not restored.done:
            done.add(0, start[name])
        elif name in restored.done:
            poisoned = IntervalSet.from_text(restored.poison.get(name, ""))
            gone = (gap for hole in done.gaps(0, first) for gap in poisoned.gaps(*hole))
            lost.extend(SlotSpan(name, *gap) for gap in gone)
        done.add(0, first)
        offsets[name] = _first_gap(done)
    texts = {name: ranges.to_text() for name, ranges in sorted(known.items()) if ranges}
    return StartOffsets(dataclasses.replace(restored, done=texts), offsets, tuple(lost))


def committable_offsets(progress: DataProgress) -> dict[str, int]:
    """The offset of each partition below which all is used or set aside: what a group commits."""
    found: dict[str, int] = {}
    for name in sorted({*progress.done, *progress.poison}):
        used = IntervalSet.from_text(progress.done.get(name, ""))
        for piece in IntervalSet.from_text(progress.poison.get(name, "")):
            used.add(*piece)
        found[name] = _first_gap(used)
    return found


def _first_gap(used: IntervalSet) -> int:
    first = used.first()
    return first[1] if first is not None and first[0] == 0 else 0


_log = logging.getLogger("rover_kf")

_LOOK_SECONDS = 0.25
"""Between two looks at where partitions end."""
EARLIEST, LATEST = "earliest", "latest"
ERROR, REPORT = "error", "report"


def value_of(record: KafkaRecord) -> bytes | None:
    """Return a record's value, the default sample."""
    return record.value


class KafkaSource:
    """Topics that are read from their history into the present, and on.

    See KafkaDataset for the arguments. ``decode`` runs in a DataLoader's workers if it has any.

    Raises:
        InputError: what is given cannot be; the message says what to do.
    """

    order = "offsets"

    def __init__(
        self,
        connection: KafkaConnection,
        topics: str | Sequence[str],
        *,
        decode: Decode = value_of,
        start: str | int = EARLIEST,
        on_lost: str = ERROR,
        on_poison: str = ERROR,
        patience_seconds: float = 60.0,
    ) -> None:
        self.connection = connection
        self.topics = (topics,) if isinstance(topics, str) else tuple(topics)
        self._decode, self._start = decode, start
        self._on_lost, self._on_poison = on_lost, on_poison
        self._patience = patience_seconds
        self._process = 0
        self._clients: tuple[KafkaClient, Fetcher] | None = None
        self._inherited: list[object] = []
        self._begins: Mapping[str, int] = {}
        self._ends: Mapping[str, int] = {}
        self._ends_fetched_at = float("-inf")
        self._fingerprint = ""
        if not self.topics or (isinstance(start, str) and start not in {EARLIEST, LATEST}):
            raise errors.InputError(
                f"topics {self.topics} from {start!r}: name a topic, and 'earliest', 'latest' or "
                "milliseconds since 1970"
            )
        if not {on_lost, on_poison} <= {ERROR, REPORT}:
            raise errors.InputError(
                f"on_lost={on_lost!r}, on_poison={on_poison!r}: each is 'error' or 'report'"
            )
        load()  # a missing package is told before anything is waited for

    # -- rover_kf.data_sharding.ledger_source.LedgerSource, in the training process
    # ----------------------------------

    @property
    def fingerprint(self) -> str:
        """The topics' own numbers: one that was made anew under its old name has other records."""
        if not self._fingerprint:
            for topic in self.topics:
                self._partitions(topic)  # a missing one is told as that
            client = self._client()
            ask = functools.partial(client.topic_ids, self.topics)
            found = client.request(f"the topics {self.topics}", ask, self._patience)
            self._fingerprint = " ".join(f"{name}={number}" for name, number in found.items())
        return self._fingerprint

    def resume(self, progress: DataProgress) -> DataProgress:
        """Find where partitions are read on.

        Raises:
            InputError: a topic is missing, or no broker answers.
            StreamLost: records that were not used are gone, and ``on_lost`` is ``error``.
        """
        places = [(topic, number) for topic in self.topics for number in self._partitions(topic)]
        oldest = self._offsets(dict.fromkeys(places, EARLIEST), self._patience)
        start = self._offsets(dict.fromkeys(places, self._start), self._patience)
        found = find_start_offsets(
            progress, oldest, {name: max(start[name], oldest[name]) for name in start}
        )
        for span in found.lost:
            self._report_lost(span)
        self._begins = found.offsets
        return found.progress

    def partitions(self) -> tuple[Partition, ...]:
        """Each from the first offset that is still to be read to the end as of now.

        Raises:
            InputError: a topic is missing, or no broker answers.
        """
        if not self._begins:
            self.resume(DataProgress())
        ends = self._fetch_ends(self._patience)
        return tuple(
            Partition(name, first, max(first, ends[name]), bounded=False)
            for name, first in self._begins.items()
        )

    def ends(self) -> Mapping[str, int]:
        """Behind the last committed record of each partition; nothing while brokers are away.

        Raises:
            StreamLost: the brokers refuse.
        """
        now = time.monotonic()
        if now - self._ends_fetched_at >= _LOOK_SECONDS:
            self._ends = self._fetch_ends(None) or self._ends
            self._ends_fetched_at = now
        return self._ends

    def _partitions(self, topic: str) -> list[int]:
        client = self._client()
        found = client.request(
            f"the topic {topic!r}", lambda: client.partitions(topic), self._patience
        )
        if not found:
            raise errors.InputError(
                f"Kafka at {self.connection.brokers} has no topic {topic!r}; create it, or correct "
                "its name"
            )
        return found

    def _fetch_ends(self, patience: float | None) -> dict[str, int]:
        return self._offsets({topic_partition(name): LATEST for name in self._begins}, patience)

    def _offsets(
        self, requested: Mapping[tuple[str, int], str | int], patience: float | None
    ) -> dict[str, int]:
        """Offsets by partition; without patience one try, which may bring none."""
        client, found = self._client(), dict[tuple[str, int], int]()
        specs = {place: self._spec(at) for place, at in requested.items()}
        while specs:
            ask = functools.partial(client.offsets, specs)
            told = (
                client.request("offsets", ask, patience) if patience else client.request_once(ask)
            )
            if told is None:
                return {}
            found |= told
            # Behind the last record there is none of a later time.
            specs = {place: self._spec(LATEST) for place, offset in told.items() if offset < 0}
        return {_name(*place): offset for place, offset in found.items()}

    def _spec(self, position: str | int) -> Any:
        spec = load("confluent_kafka.admin").OffsetSpec
        if isinstance(position, int):
            return spec.for_timestamp(position)
        return spec.earliest() if position == EARLIEST else spec.latest()

    def is_away(self) -> bool:
        """Whether brokers do not answer this process; from any thread."""
        clients = self._clients
        return clients is not None and clients[0].outage.is_active

    # -- where data are read -----------------------------------------------------------------------

    def read(self, span: SlotSpan, epoch: int) -> Iterator[Any]:  # noqa: ARG002 - a stream has one
        """Return a sample or a ``SlotMarker`` per offset; wait for brokers that are away.

        Raises:
            StreamLost: records are gone or cannot be decoded, and that is an error, or the
                brokers refuse.
        """
        topic, number = topic_partition(span.partition)
        events = self._process_clients()[1].events(topic, number, span.begin, span.end)
        return fill_range(span, events, self._decode_record)

    def _decode_record(self, record: KafkaRecord) -> Any:
        try:
            return self._decode(record)
        except Exception as cause:  # the user's code may raise anything
            text = f"the record {record.name} cannot be decoded: {type(cause).__name__}: {cause}"
            if self._on_poison == ERROR:
                raise errors.StreamLost(
                    f"{text}; mend decode, or set on_poison='report' to go on without such records"
                ) from cause
            _log.warning("rover-kf: %s; the job goes on without it", text)
            return UnusableRecord(text)

    def _on_offset_gone(self, topic: str, number: int, offset: int) -> int:
        """Records from an offset on are no longer there while they are read."""
        name, asked = _name(topic, number), {(topic, number): EARLIEST}
        oldest = self._offsets(asked, math.inf)[name]
        if oldest <= offset:
            return offset  # none is lost: the partition does not reach it any more
        self._report_lost(SlotSpan(name, offset, oldest))
        return oldest

    def _report_lost(self, span: SlotSpan) -> None:
        text = (
            f"{span.size} records of {span.partition} (offsets {span.begin} to {span.end - 1}) "
            "that were not trained on are no longer there"
        )
        if self._on_lost == ERROR:
            raise errors.StreamLost(
                f"{text}: the topic's retention is shorter than the job's lag; keep records "
                "longer, or set on_lost='report' to go on without them"
            )
        _log.warning("rover-kf: %s; the job goes on without them", text)

    # -- processes ---------------------------------------------------------------------------------

    def _client(self) -> KafkaClient:
        return self._process_clients()[0]

    def _process_clients(self) -> tuple[KafkaClient, Fetcher]:
        """This process's own: connections do not survive a fork."""
        if self._process != os.getpid() or self._clients is None:
            # What was inherited is kept: to end it would wait for threads that are not here.
            self._inherited.append(self._clients)
            client = KafkaClient(self.connection)
            self._process, self._clients = (
                os.getpid(),
                (client, Fetcher(client, self._on_offset_gone)),
            )
        return self._clients

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_clients": None, "_inherited": []}


def topic_partition(name: str) -> tuple[str, int]:
    """Topic and number of a partition, by the name that the ledger knows it by."""
    topic, _, number = name.rpartition("/")
    return topic, int(number)


def _name(topic: str, number: int) -> str:
    return f"{topic}/{number}"
