# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Trains on a topic of Kafka while it goes on, and keeps count of its records, which are numbers.

``streamed.py BROKERS TOPIC MOST``. The state has a count for every number below MOST, which goes
back with a checkpoint as a weight does. It ends when the file ENOUGH is there and as many records
as that says were counted; rank 0 leaves the counts in the file COUNTS then. Beside that each
process writes to its own file in the folder JOURNAL as scripts/counted.py does, ``records`` in
place of ``rows`` and ``leased``.
"""

import base64
import json
import os
import pathlib
import socket
import sys
import time

import torch
import torch.distributed as dist

import rover_kf

HOME = pathlib.Path("/checkpoints")
JOURNAL, ENOUGH, COUNTS = (HOME / name for name in ("journal", "enough", "counts.json"))
PACE = 0.05
"""Seconds a step."""


def number(record):
    """A record's sample."""
    return int(record.value)


def write(**line):
    """One line of this process's journal; a part of one that was killed here stands before it."""
    place = JOURNAL / f"{socket.gethostname()}.{os.environ['RANK']}.{os.getpid()}.jsonl"
    known = {"round": int(os.environ["ROVER_ROUND"]), "rank": dist.get_rank()}
    with place.open("a") as file:
        file.write("\n" + json.dumps(known | {"at": time.monotonic()} | line) + "\n")


def main():
    """Train until enough were counted."""
    brokers, topic, most = sys.argv[1], sys.argv[2], int(sys.argv[3])
    dist.init_process_group("gloo")
    JOURNAL.mkdir(exist_ok=True)
    data = rover_kf.KafkaDataset(brokers, topic, group=topic, decode=number, shard_size=16)
    loader = data.loader(32, num_workers=1)
    counts = torch.zeros(most, dtype=torch.int32)
    torch.manual_seed(0)
    state = {"model": torch.nn.Linear(4, 4), "data": data, "counts": counts}
    checkpointer = rover_kf.Checkpointer()
    step = checkpointer.restore(state)
    write(resumed=step)
    for numbers in loader:
        given = numbers if loader.weight else numbers[:0]
        own = torch.zeros(most + 1, dtype=torch.int32)
        own.index_add_(0, given, torch.ones(len(given), dtype=torch.int32))
        if dist.get_rank() == 0 and ENOUGH.exists():
            own[-1] = int(ENOUGH.read_text())
        dist.all_reduce(own)
        counts += own[:-1]
        step += 1
        records = base64.b64encode(given.to(torch.int32).numpy().tobytes()).decode()
        write(world=dist.get_world_size(), step=step, records=records)
        time.sleep(PACE)
        checkpointer.step(step, state, samples=len(given))
        if 0 < own[-1] <= counts.sum():
            break
    checkpointer.save(step, state)
    if dist.get_rank() == 0:
        assert checkpointer.wait(step)
        data.close()
        COUNTS.write_text(json.dumps(counts.tolist()))
    checkpointer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
