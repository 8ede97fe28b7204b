# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A topic of a real broker, trained on by a job of a real cluster while both are broken."""

from __future__ import annotations

import json
import time
import uuid

import pytest
from testcluster import jobs, network, sample_journal
from testcluster.jobs import RunningJob
from testcluster.objects import apply
from testcluster.sample_journal import SampleJournal

from tests.support.servers.kafka_broker import kafka_broker
from tests.support.servers.kafka_feed import Feed, Lag
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.timeout(900), pytest.mark.usefixtures("controller"), pytest.mark.at_length,
]  # fmt: skip

MOST, HISTORY, REST, PARTITIONS = 30_000, 600, 60, 3
FIRST, SECOND = "digits-worker-0", "digits-worker-1"


@pytest.fixture
def kafka(checkpoints, tmp_path):
    """A broker beside the cluster's nodes, on the bridge that they hang on."""
    assert checkpoints.exists(), "the cluster is ours, and its bridge is there"
    with kafka_broker(tmp_path / "kafka", host=network.GATEWAY) as broker:
        yield broker


def _manifest(namespace: str, *options: str) -> dict:
    """Two pods, or one while the other is away."""
    job = jobs.digits(namespace)
    job["metadata"]["annotations"] |= {
        "rover-kf.io/checkpoint.every": "5",
        "rover-kf.io/scaling.mode": "off",
    }
    job["spec"]["elasticPolicy"] |= {"minReplicas": 1, "maxReplicas": 2}
    container = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["command"] = ["torchrun", "/tools/streamed.py", *options]
    return job


def test_each_record_counts_once_in_what_survives(  # noqa: PLR0917 - all of it is needed
    cluster, namespace, with_trainer, checkpoints, faults, kafka
):
    """Broker killed (SIGKILL) and started again, a pod deleted, a process killed, the broker killed
    together with the first pod: none of the records is lost, none counts twice, and at each look
    the group's offsets are at most those of the newest checkpoint on storage."""
    topic = f"clicks-{uuid.uuid4().hex[:8]}"
    kafka.create(topic, PARTITIONS)
    feed = Feed(kafka.address, topic, PARTITIONS, MOST - REST)
    feed.append(HISTORY)
    feed.flush()
    manifest = _manifest(namespace, kafka.address, topic, str(MOST))
    apply(cluster, [with_trainer(manifest, scripts=jobs.SAMPLES, tools=jobs.TOOLS)])
    job, journal = RunningJob(cluster, namespace, "digits"), SampleJournal(checkpoints / "journal")
    lag = Lag(kafka.address, topic, PARTITIONS, checkpoints / "digits")
    _trains(journal, 0.0)
    lag.start()
    feed.start()
    kafka.stop()
    kafka.start()
    _trains(journal, time.monotonic(), anew=False)
    begun = _delete(job, SECOND)
    _trains(journal, begun)
    begun = time.monotonic()
    faults.kill(namespace, SECOND, container="pytorch")
    _trains(journal, begun)
    kafka.stop()
    begun = _delete(job, FIRST)
    kafka.start()
    _trains(journal, begun)
    feed.end()
    (checkpoints / "enough.part").write_text(str(feed.count + REST))
    (checkpoints / "enough.part").rename(checkpoints / "enough")
    feed.append(REST)
    feed.flush()
    assert eventually(job.verdict, within=240, every=1, what="the job's end") == "Succeeded"
    lag.end()
    counts = json.loads((checkpoints / "counts.json").read_text())
    _check(journal, counts, feed.count)
    print(f"{lag.seen} looks at {len(lag.values)} committed offsets")
    assert lag.ahead == []
    assert len(lag.values) > 1
    assert lag.committed() == lag.durable()
    assert sum(lag.committed().values()) == feed.count


def _check(journal: SampleJournal, counts: list[int], records: int) -> None:
    """What the state has counted, and what the steps that survive were given."""
    surviving = journal.surviving()
    given = sample_journal.counts(surviving, "records")
    lost, twice = counts[:records].count(0), sum(count > 1 for count in counts)
    done = {(line["begun"], line["step"]) for line in journal.steps() if line["rank"] == 0}
    print(
        f"\n{records} records, {lost} lost, {twice} counted twice; {len(surviving)} steps survive, "
        f"{len(done) - len(surviving)} were done again"
    )
    assert (lost, twice, sum(counts)) == (0, 0, records)
    assert len(given) == records
    assert (given == 1).all()
    assert {line["world"] for line in journal.steps()} == {1, 2}
    assert len(done) > len(surviving)


def _delete(job: RunningJob, pod: str) -> float:
    """As ``kubectl delete pod`` does it; when."""
    begun = time.monotonic()
    job.cluster.kubectl("-n", job.namespace, "delete", "pod", pod, "--wait=false")
    return begun


def _trains(journal: SampleJournal, since: float, *, anew: bool = True) -> None:
    """Wait for steps of two ranks since then."""
    trains = lambda: journal.trains(2, since, anew=anew)  # noqa: E731
    eventually(trains, within=240, every=0.1, what="steps of two ranks")
