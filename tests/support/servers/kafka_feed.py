# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A topic that goes on while a job trains on it, and a look at how far its group is."""

from __future__ import annotations

import contextlib
import pathlib
import threading

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from rover_kf import errors
from rover_kf.api import codec
from rover_kf.api.data import DataProgress
from rover_kf.checkpoint_tools.consolidated_state import open_state
from rover_kf.checkpoint_tools.locate import locate
from rover_kf.trainer.data.kafka.source import committable_offsets

_EACH, _PAUSE_SECONDS = 4, 0.05


class Feed(threading.Thread):
    """Produces numbers from 0 on, one a record, each once whatever happens to the broker.

    Args:
        address: of the broker.
        topic: to append to.
        partitions: of it.
        most: records that it makes by itself.
    """

    def __init__(self, address: str, topic: str, partitions: int, most: int) -> None:
        super().__init__(daemon=True)
        config = {"bootstrap.servers": address, "enable.idempotence": True, "log_level": 0}
        self._producer, self._topic = Producer(config), topic
        self._partitions, self._most = partitions, most
        self.count = 0
        self._end = threading.Event()

    def append(self, count: int) -> None:
        """So many more."""
        for number in range(self.count, self.count + count):
            partition = number % self._partitions
            self._producer.produce(self._topic, b"%d" % number, partition=partition)
            self._producer.poll(0)
        self.count += count

    def run(self) -> None:
        """A few at a time, until it is told to end."""
        while not self._end.wait(_PAUSE_SECONDS) and self.count < self._most:
            self.append(_EACH)

    def end(self) -> None:
        """No more by itself; waits until the broker has all."""
        self._end.set()
        self.join()
        self.flush()

    def flush(self) -> None:
        """Wait until the broker has all."""
        assert self._producer.flush(120) == 0


class Lag(threading.Thread):
    """Compares, again and again, what the group has committed with what is durable.

    Args:
        address: of the broker.
        topic: that is read, by a group of the same name.
        partitions: of it.
        storage: folder of the job's checkpoints, whose state has the data set as ``data``.
    """

    def __init__(self, address: str, topic: str, partitions: int, storage: pathlib.Path) -> None:
        super().__init__(daemon=True)
        config = {"bootstrap.servers": address, "group.id": topic, "log_level": 0}
        self._consumer, self._storage = Consumer(config), storage
        self._partitions = [TopicPartition(topic, number) for number in range(partitions)]
        self._end = threading.Event()
        self.seen = 0
        self.ahead: list[tuple[dict[str, int], dict[str, int]]] = []
        self.values: set[int] = set()

    def run(self) -> None:
        """Until it is told to end. What is committed is asked first: both only grow."""
        while not self._end.wait(0.5):
            with contextlib.suppress(KafkaException, errors.RoverError, OSError):
                group = self.committed()
                durable = self.durable()
                late = {name: at for name, at in group.items() if at > durable.get(name, 0)}
                self.ahead += [(late, durable)] if late else []
                self.seen += 1
                self.values.add(sum(group.values()))

    def committed(self) -> dict[str, int]:
        """Offsets of the group, those that it has."""
        told = self._consumer.committed(self._partitions, timeout=5)
        return {f"{at.topic}/{at.partition}": at.offset for at in told if at.offset >= 0}

    def durable(self) -> dict[str, int]:
        """What the newest whole checkpoint on storage has used."""
        place = locate(str(self._storage))
        tree = open_state(place.storage, place.checkpoint()).tree()
        return dict(committable_offsets(codec.decode(DataProgress, tree["data"]["progress"])))

    def end(self) -> None:
        """Look no more."""
        self._end.set()
        self.join()
