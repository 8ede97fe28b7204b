# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Topics of Kafka as a data set that never ends: each record once in the model that survives.

::

    data = rover_kf.KafkaDataset("kafka:9092", "clicks", group="click-model", decode=parse)
    loader = data.loader(batch_size=32)
    state = {"model": model, "optimizer": optimizer, "data": data}
    step = checkpointer.restore(state)
    for inputs, labels in loader:
        (loss(model(inputs), labels) * loader.weight).backward()
        ...
"""

from __future__ import annotations

import bisect
import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rover_kf import errors
from rover_kf.trainer import settings as trainer_settings
from rover_kf.trainer.data.kafka.client import KafkaClient, KafkaConnection
from rover_kf.trainer.data.kafka.fetcher import Decode
from rover_kf.trainer.data.kafka.source import (
    EARLIEST,
    ERROR,
    KafkaSource,
    committable_offsets,
    topic_partition,
    value_of,
)
from rover_kf.trainer.data.sharded_dataset import ShardedDataset
from rover_kf.trainer.settings import TrainerSettings

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

    They are for other tools, and never ahead of a durable checkpoint. Every so many seconds it
    commits those of the newest durable step; training does not wait.
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


class KafkaDataset(ShardedDataset):
    """Put it into the state that is checkpointed, and iterate over its loader.

    Ranges of offsets are leased to ranks; the consumer group owns nothing, and its offsets are
    committed, for other tools to see the lag, once a durable checkpoint has them.

    Args:
        brokers: ``host:port``, several separated by commas.
        topics: one or several.
        group: consumer group of the job.
        decode: makes a sample of a KafkaRecord; its value if not given. Runs where data are read.
        start: where a job without a checkpoint begins: ``earliest``, ``latest`` or milliseconds
            since 1970.
        on_lost: ``error`` or ``report``: of records that were not used and are no longer there.
        on_poison: ``error`` or ``report``: of records that decode raises for.
        options: of librdkafka, such as ``{"security.protocol": "SASL_SSL"}``.
        secrets: options by the place of their value, ``env:NAME`` or ``file:/path``.
        name: tells a job's data sets apart.
        shard_size: offsets of a lease.
        patience_seconds: how long the brokers' first answer may take when the job begins; one that
            goes on waits for them.
        settings: of the process; read from the environment if not given.

    Raises:
        InputError: a topic is missing, the client is not installed, or an option cannot be.
        StreamLost: no broker answers, or they refuse.
    """

    def __init__(
        self,
        brokers: str,
        topics: str | Sequence[str],
        *,
        group: str,
        decode: Decode = value_of,
        start: str | int = EARLIEST,
        on_lost: str = ERROR,
        on_poison: str = ERROR,
        options: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        name: str = "kafka",
        shard_size: int = 1024,
        patience_seconds: float = 60.0,
        settings: TrainerSettings | None = None,
    ) -> None:
        given = settings or trainer_settings.read()
        source = KafkaSource(
            KafkaConnection(brokers, group, options or {}, secrets or {}),
            topics,
            decode=decode,
            start=start,
            on_lost=on_lost,
            on_poison=on_poison,
            patience_seconds=patience_seconds if given.round <= 1 else math.inf,
        )
        super().__init__(source, name=name, shard_size=shard_size, settings=given)
        self._kafka = source
        self._group: GroupOffsets | None = None

    def state_saved(self, is_durable: Callable[[], bool]) -> None:
        """See rover_kf.trainer.sidecar_client: rank 0 commits the group's offsets for all."""
        if self._settings.rank:
            return
        if self._group is None:
            self._group = GroupOffsets(self._kafka.connection)
        offsets = committable_offsets(self.union.progress())
        self._group.record_saved(
            {topic_partition(name): at for name, at in offsets.items()}, is_durable
        )

    def is_waiting(self) -> bool:
        """Whether no rank has anything to read, as nothing comes or brokers are away."""
        return super().is_waiting() or self._kafka.is_away()

    def close(self) -> None:
        """Lease no more, and commit the group's offsets as far as a durable checkpoint has them."""
        super().close()
        if self._group is not None:
            self._group.close()
            self._group = None

    def __getstate__(self) -> dict[str, Any]:
        """Threads and connections stay with the process that has them."""
        return {**super().__getstate__(), "_group": None}
