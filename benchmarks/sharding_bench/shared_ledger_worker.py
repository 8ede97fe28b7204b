# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One process that pulls samples, is asleep for as long as they take it, and writes a journal.

A line of the journal has the time and the samples of a batch. Where the file ``keep`` appears, rank
0 writes the place for a checkpoint and when it knew it.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import time
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.sharding_bench.counted_samples import Counted

BATCHES_A_SHARD = 10
"""What DLRover takes by default."""


class Static:
    """Equal parts."""

    def __init__(self, given: argparse.Namespace, rank: int) -> None:
        self._part, self._batch = range(rank, given.samples, given.world), given.batch

    def batches(self) -> Iterator[list[int]]:
        """Of this process."""
        for begin in range(0, len(self._part), self._batch):
            yield list(self._part[begin : begin + self._batch])


class Dlrover:
    """ShardingClient: its master hands out shards."""

    def __init__(self, given: argparse.Namespace, rank: int) -> None:
        from dlrover.python.elastic_agent.master_client import (  # noqa: PLC0415 - only in its environment, as the next
            MasterClient,
            build_master_client,
        )
        from dlrover.python.elastic_agent.sharding.client import ShardingClient  # noqa: PLC0415

        build_master_client()
        self._batch = given.batch
        self._client = ShardingClient(
            dataset_name="train",
            batch_size=given.batch,
            num_epochs=1,
            dataset_size=given.samples,
            num_minibatches_per_shard=BATCHES_A_SHARD,
        )
        if given.place and rank == 0:  # before any process takes a shard
            # In 0.6.1 the client's own restore_shard_from_checkpoint wraps its message twice, and
            # the master refuses it: this is what it calls.
            restored = MasterClient.singleton_instance().report_shard_checkpoint(_place(given))
            assert restored.success, restored

    def batches(self) -> Iterator[list[int]]:
        """What it is given; a batch is reported when the next one is asked for."""
        while shard := self._client.fetch_shard():
            numbers = shard.indices or range(shard.start, shard.end)
            for begin in range(0, len(numbers), self._batch):
                part = list(numbers[begin : begin + self._batch])
                yield part
                self._client.report_batch_done(len(part))

    def place(self) -> Any:
        """For a checkpoint."""
        return self._client.get_shard_checkpoint()


class Rover:
    """ShardedDataset: the job's coordinator leases shards."""

    def __init__(self, given: argparse.Namespace, rank: int) -> None:  # noqa: ARG002 - it knows it
        from rover_kf import ShardedDataset  # noqa: PLC0415 - a peer's environment may lack it

        shard = given.batch * BATCHES_A_SHARD
        self._data = ShardedDataset(Counted(given.samples), shard_size=shard, shared=True)
        self._batch = given.batch
        if given.place:
            self._data.load_state_dict(_place(given))

    def batches(self) -> Iterable[list[int]]:
        """What it is given."""
        return (batch for batch in self._data.loader(self._batch, collate_fn=list) if batch)

    def place(self) -> Any:
        """For a checkpoint."""
        return self._data.state_dict()


SYSTEMS: dict[str, Any] = {"static": Static, "dlrover": Dlrover, "rover": Rover}


def _place(given: argparse.Namespace) -> Any:
    return json.loads(given.place.read_text())["place"]


def main() -> None:
    """Train on what there is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("system", choices=[*SYSTEMS])
    for name in ("world", "samples", "batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--seconds", type=float, nargs="+", help="that a sample takes each rank")
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--place", type=pathlib.Path, help="that it goes on from")
    given = parser.parse_args()
    rank, folder = int(os.environ["RANK"]), given.folder
    reader = SYSTEMS[given.system](given, rank)
    (folder / f"ready-{rank}").write_text(str(os.getpid()))
    _until(folder / "go")
    with (folder / f"journal-{rank}").open("a", buffering=1) as journal:
        for numbers in reader.batches():
            time.sleep(given.seconds[rank] * len(numbers))
            journal.write(json.dumps([time.time(), numbers]) + "\n")
            if rank == 0 and (folder / "keep").exists() and not (folder / "place").exists():
                told = json.dumps({"place": reader.place(), "at": time.time()})
                (folder / "place.part").write_text(told)
                (folder / "place.part").rename(folder / "place")
    (folder / f"ended-{rank}").touch()
    # The master of a peer ends as soon as nothing is left; nobody leaves before all have ended.
    _until(folder / "over")


def _until(path: pathlib.Path) -> None:
    while not path.exists():
        time.sleep(0.001)


if __name__ == "__main__":
    main()
