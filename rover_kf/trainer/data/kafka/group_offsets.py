# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Offsets of a consumer group that other tools see: never ahead of what a durable checkpoint has.

A thread asks now and then which of the steps that were saved are durable by now, and commits what
the newest of them had used. Training waits for neither, and no records are owned by the group.
"""

from __future__ import annotations

import bisect
import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rover_kf import errors
from rover_kf.trainer.data.kafka.broker_connection import KafkaConnection
from rover_kf.trainer.data.kafka.client import KafkaClient

if TYPE_CHECKING:
    import confluent_kafka

_log = logging.getLogger("rover_kf")

_LOOK_SECONDS = 1.0
_MOST_SAVED = 4096
"""Steps that are not durable yet; of more the oldest are forgotten: newer ones have more."""

Offsets = Mapping[tuple[str, int], int]
"""By topic and partition."""
Saved = tuple[Offsets, Callable[[], bool]]


class GroupOffsets:
    """A thread that commits the offsets of one group; one process of a job has it.

    ``every`` are the seconds between two rounds.
    """

    def __init__(self, connection: KafkaConnection, *, every: float = _LOOK_SECONDS) -> None:
        self._client, self._every = KafkaClient(connection), every
        self._consumer: confluent_kafka.Consumer | None = None
        self._lock, self._saved = threading.Lock(), list[Saved]()
        self._due: Offsets = {}
        self._ended = threading.Event()
        # A daemon: an interpreter that ends must not wait for brokers.
        self._thread = threading.Thread(target=self._run, name="rover-kafka-offsets", daemon=True)
        self._thread.start()

    def record_saved(self, offsets: Offsets, is_durable: Callable[[], bool]) -> None:
        """Note a saved step with the offsets below which it used all.

        ``is_durable`` returns whether the step, or a newer one, is durable by now.
        """
        with self._lock:
            self._saved = [*self._saved, (offsets, is_durable)][-_MOST_SAVED:]

    def close(self, timeout: float = 10.0) -> None:
        """Commit what is durable by now, within so many seconds."""
        self._ended.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._ended.wait(self._every):
            self._commit_durable()
        self._commit_durable()
        if self._consumer is not None:
            self._consumer.close()

    def _commit_durable(self) -> None:
        try:
            self._collect_durable()
            if self._due:
                self._commit(self._due)
                self._due = {}
        except errors.SidecarUnavailable as reason:
            _log.debug("rover-kf: not known what is durable: %s", reason)
        except errors.RoverError as error:
            _log.warning("rover-kf: offsets are not committed: %s", error)

    def _collect_durable(self) -> None:
        saved = self._saved
        count = bisect.bisect_left(saved, x=True, key=lambda entry: not entry[1]())
        if count:
            self._due = saved[count - 1][0]
            with self._lock:
                self._saved = [one for one in self._saved if one not in saved[:count]]

    def _commit(self, offsets: Offsets) -> None:
        if self._consumer is None:
            self._consumer = self._client.consumer({})
        consumer, made = self._consumer, self._client.library.TopicPartition
        told = [made(topic, number, offset) for (topic, number), offset in offsets.items()]
        try:
            answers = consumer.commit(offsets=told, asynchronous=False)
        except self._client.library.KafkaException as cause:
            self._client.check(cause.args[0], "committing offsets")
            raise errors.StreamLost(f"{cause.args[0].str()}; tried again") from cause
        refused = [f"{at.topic}/{at.partition}: {at.error.str()}" for at in answers if at.error]
        if refused:
            raise errors.StreamLost(f"{', '.join(refused)}; tried again")
