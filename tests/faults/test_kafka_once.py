# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Real training on a real topic, with the broker killed, workers killed and the world scaled.

The state has a count for every record, which goes back with a checkpoint as a weight does: what it
says at the end is what the surviving model was trained on.
"""

from __future__ import annotations

import json
import time
import uuid

from confluent_kafka import Consumer, TopicPartition

from rover_kf.api import codec, names
from rover_kf.api.data import SlotSpan
from rover_kf.api.status import Ack, ScaleRequest
from rover_kf.trainer.data.kafka.client import KafkaConnection
from rover_kf.trainer.data.kafka.dataset import GroupOffsets
from tests.support.pods.launcher_pods import Job, kill
from tests.support.servers.kafka_feed import Feed, Lag
from tests.support.waiting import eventually

MOST, HISTORY, REST, PARTITIONS = 20_000, 600, 60, 3

TRAINING = """
import json, os, sys, time
import torch, torch.distributed as dist
from rover_kf import Checkpointer, KafkaDataset

brokers, topic, most, enough = sys.argv[1:]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
data = KafkaDataset(brokers, topic, group=topic, decode=lambda r: int(r.value), shard_size=16,
                    on_poison="report")
loader = data.loader(32, num_workers=1)
counts = torch.zeros(int(most), dtype=torch.int32)
torch.manual_seed(0)
state = {"model": torch.nn.Linear(4, 4), "data": data, "counts": counts}
checkpointer = Checkpointer()
step = checkpointer.restore(state)
for numbers in loader:
    own = torch.zeros(len(counts) + 1, dtype=torch.int32)
    if loader.weight:
        own.index_add_(0, numbers, torch.ones(len(numbers), dtype=torch.int32))
    if rank == 0 and os.path.exists(enough):
        own[-1] = int(open(enough).read())
    dist.all_reduce(own)
    counts += own[:-1]
    step += 1
    time.sleep(0.01)
    sys.stdout.write(f"step {step} rank {rank} of {world} pid {os.getpid()} "
                     f"round {os.environ['ROVER_ROUND']} at {time.time()}\\n")
    sys.stdout.flush()
    checkpointer.step(step, state, samples=len(numbers))
    if 0 < own[-1] <= counts.sum():
        break
checkpointer.save(step, state)
if rank == 0:
    assert checkpointer.wait(step)
    data.close()
    print("counts", json.dumps(counts.tolist()))
checkpointer.close()
dist.destroy_process_group()
"""


def test_each_record_counts_once_in_the_model_that_survives(kafka):
    """2 → 3 → 1 ranks, workers and the broker killed between: 0 lost, 0 counted twice, and the
    group's offsets are never ahead of the newest durable checkpoint. A record that is no number is
    told by its place."""
    topic = f"clicks-{uuid.uuid4().hex[:8]}"
    kafka.create(topic, PARTITIONS)
    kafka.produce(topic, [b"one"], partition=1)
    feed = Feed(kafka.address, topic, PARTITIONS, MOST - REST)
    feed.append(HISTORY)
    feed.flush()
    with Job(2, max_nodes=3, restarts=20) as job:
        lag = Lag(kafka.address, topic, PARTITIONS, job.folder / "storage" / "train")
        enough = job.folder / "enough"
        command = (job.script(TRAINING), kafka.address, topic, str(MOST), str(enough))
        job.start(*command)
        lag.start()
        feed.start()
        job.stepping(0, 1)
        (poison,) = eventually(lambda: [p for data in job.status().data for p in data.poison])
        assert poison.span == SlotSpan(f"{topic}/1", 0, 1)
        eventually(lambda: names.EVENT_DATA_SHARD_QUARANTINED in job.events())
        again = job.stepping(0, 1, after=_kill_one(job, 1))
        kafka.stop()
        kafka.start()
        job.stepping(0, 1, after=max(again, time.time()))
        job.add(2, *command)
        assert _scale(job, 3)
        job.stepping(0, 1, 2)
        _kill_one(job, 2)
        kafka.stop()
        kafka.start()
        job.stepping(0, 1, 2, after=time.time())
        assert _scale(job, 1)
        job.stepping(0, after=time.time())
        feed.end()
        (job.folder / "enough.part").write_text(str(feed.count + REST))
        (job.folder / "enough.part").rename(enough)
        feed.append(REST)
        feed.flush()
        assert job.pods[0].wait() == 0
        lag.end()
        text = job.pods[0].text()
        steps = job.pods[0].steps()
    counts = json.loads(text.partition("counts ")[2].partition("\n")[0])
    lost, twice = counts[: feed.count].count(0), sum(count > 1 for count in counts)
    again = len(steps) - len({step["step"] for step in steps})
    print(
        f"{feed.count} records, {lost} lost, {twice} counted twice; {len(steps)} steps, {again} of "
        f"them done again; {lag.seen} looks at {len(lag.values)} committed offsets"
    )
    assert (lost, twice, sum(counts)) == (0, 0, feed.count)
    assert {step["of"] for step in steps} == {1, 2, 3}
    assert len({step["pid"] for step in steps}) > 3, "each kill and each size has other processes"
    assert lag.ahead == []
    assert len(lag.values) > 1
    assert sum(lag.committed().values()) == feed.count + 1, "with the one that is no number"


def test_a_group_commits_what_is_durable_and_no_more(kafka):
    """Of the steps that were saved the newest durable one counts; the last look is at the end."""
    topic = f"clicks-{uuid.uuid4().hex[:8]}"
    kafka.create(topic, 1)
    durable = [0]
    group = GroupOffsets(KafkaConnection(kafka.address, topic), every=0.05)
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": topic})

    def offset():
        (at,) = consumer.committed([TopicPartition(topic, 0)], timeout=10)
        return at.offset

    def save(step):
        group.record_saved({(topic, 0): 10 * step}, lambda: durable[0] >= step)

    for step in range(1, 40):
        save(step)
    durable[0] = 7
    assert eventually(lambda: offset() == 70)
    durable[0] = 38
    assert eventually(lambda: offset() == 380)
    durable[0] = 39
    save(40)
    group.close()
    assert offset() == 390
    consumer.close()


def _kill_one(job: Job, pod: int) -> float:
    """SIGKILL the pod's training process; the time, after which it steps no more."""
    kill(job.pods[pod].steps()[-1]["pid"])
    return time.time()


def _scale(job: Job, count: int) -> bool:
    eventually(lambda: job.status().step > 0, within=120)
    return codec.loads(Ack, job.ask(names.PATH_SCALE, ScaleRequest(count, "test"))).done
