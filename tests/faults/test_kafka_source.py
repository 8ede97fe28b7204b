# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Topics of a real Kafka broker, read as a ledger lends them: history, then what comes in."""

from __future__ import annotations

import json
import logging
import pickle
import threading
import time
import uuid

import pytest
from confluent_kafka import Producer, TopicPartition

from rover_kf import KafkaDataset, errors
from rover_kf.api.data import DataPlan, DataProgress
from rover_kf.data_sharding.ledger import LeaseLedger
from rover_kf.data_sharding.ledger_source import (
    LedgerSource,
    ResumableSource,
    SlotMarker,
    UnusableRecord,
)
from rover_kf.trainer.data.kafka import fetcher
from rover_kf.trainer.data.kafka.client import KafkaConnection
from rover_kf.trainer.data.kafka.source import KafkaSource
from tests.support.waiting import eventually


def numbered(first, end):
    return [b"%d" % number for number in range(first, end)]


def made(kafka, topic, **options):
    return KafkaSource(KafkaConnection(kafka.address, "readers"), topic, **options)


class Reading:
    """One worker with a ledger of its own, that uses all it is lent."""

    def __init__(self, source, progress=None, shard=16):
        self.source, self.spoilt = source, []
        progress = source.resume(progress or DataProgress())
        self.ledger = LeaseLedger(DataPlan("clicks", source.partitions(), shard), progress)

    def rest(self):
        """What there is by now, without the empty slots."""
        self.source._ends_fetched_at = float("-inf")
        self.ledger.grow(self.source.ends())
        found = []
        while leased := self.ledger.lease("one", 0, 0.0):
            for span in leased:
                samples = list(self.source.read(span, 0))
                assert len(samples) == span.size
                self.spoilt += [
                    sample.reason for sample in samples if isinstance(sample, UnusableRecord)
                ]
                found += [
                    s
                    for s in samples
                    if s is not SlotMarker.EMPTY and not isinstance(s, UnusableRecord)
                ]
            self.ledger.report("one", 0, leased)
        return found

    def progress(self):
        return self.ledger.progress()


@pytest.fixture
def topic(kafka):
    name = f"clicks-{uuid.uuid4().hex[:8]}"
    kafka.create(name, 2)
    return name


def test_a_record_is_read_when_it_is_there(kafka, topic):
    """Nothing waits for more of them to come: each of twenty, produced one by one, at once."""
    source = made(kafka, topic, decode=lambda record: int(record.value))
    reading, waited = Reading(source), 0.0
    for number in range(20):
        kafka.produce(topic, numbered(number, number + 1), partition=0)
        begun = time.monotonic()
        assert eventually(reading.rest, every=0.01) == [number]
        waited += time.monotonic() - begun
    print(f"{waited / 20:.3f} s a record")
    assert waited < 20 * 0.3


def test_history_is_read_first_and_then_what_comes_in(kafka, topic):
    """Two partitions; a job that goes on reads what came since, and nothing twice."""
    kafka.produce(topic, numbered(0, 40), partition=0)
    kafka.produce(topic, numbered(40, 45), partition=1)
    source = made(kafka, topic, decode=lambda record: int(record.value))
    assert isinstance(source, LedgerSource)
    assert isinstance(source, ResumableSource)
    reading = Reading(source)
    assert sorted(reading.rest()) == list(range(45))
    assert reading.rest() == []
    kafka.produce(topic, numbered(45, 60), partition=1)
    assert sorted(reading.rest()) == list(range(45, 60))
    kafka.produce(topic, numbered(60, 70), partition=0)
    later = Reading(made(kafka, topic), reading.progress())
    assert sorted(map(int, later.rest())) == list(range(60, 70))


def test_a_job_begins_at_the_end_or_at_a_time_and_goes_on_there(kafka, topic):
    """What came between is not skipped by a job that goes on, whatever its start says."""
    kafka.produce(topic, numbered(0, 10), partition=0)
    new = Reading(made(kafka, topic, start="latest"))
    assert new.rest() == []
    kafka.produce(topic, numbered(10, 12), partition=0)
    assert new.rest() == numbered(10, 12)
    kafka.produce(topic, numbered(12, 15), partition=0)
    assert Reading(made(kafka, topic, start="latest"), new.progress()).rest() == numbered(12, 15)
    records = []
    Reading(made(kafka, topic, decode=records.append)).rest()
    at = records[10].timestamp
    assert at > records[9].timestamp
    assert Reading(made(kafka, topic, start=at)).rest() == numbered(10, 15)
    assert Reading(made(kafka, topic, start=at + 3_600_000)).rest() == []


def test_offsets_without_a_record_hold_nothing_up(kafka, topic):
    """Transactions: of an aborted one nothing is read, and its offsets and markers are gaps."""
    config = {"bootstrap.servers": kafka.address, "transactional.id": topic}
    producer = Producer(config)
    producer.init_transactions(60)
    for keep, first in ((True, 0), (False, 100), (True, 5), (False, 200)):
        producer.begin_transaction()
        for value in numbered(first, first + 5):
            producer.produce(topic, value, partition=0)
        assert producer.flush(60) == 0  # else an abort would send nothing of them
        if keep:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
    reading = Reading(made(kafka, topic), shard=3)
    assert reading.rest() == numbered(0, 10)
    kafka.produce(topic, numbered(10, 12), partition=0)
    assert reading.rest() == numbered(10, 12)
    # 20 records and 4 markers lie before the two last ones.
    assert reading.progress().done[f"{topic}/0"] == "0+26"


def test_a_compacted_topic_has_holes_and_each_last_record(kafka, topic):
    """Of records of one key the last is kept: ranges in which none is left are used, too."""
    compacted = f"{topic}-compacted"
    rules = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    kafka.create(compacted, 1, rules)
    values = numbered(0, 40)
    for value in values:
        kafka.produce(compacted, [value], partition=0, key=b"%d" % (int(value) % 2))
    kafka.produce(compacted, [b"40"], partition=0, key=b"2")  # the others' segment is closed

    def left():
        return Reading(made(kafka, compacted), shard=3).rest()

    kept = eventually(lambda: (found := left()) and len(found) < 41 and found, within=60)
    print(f"{len(kept)} of 41 records are left: {kept}")
    assert {b"38", b"39", b"40"} <= {*kept}
    assert kept == [value for value in [*values, b"40"] if value in kept]
    reading = Reading(made(kafka, compacted), shard=3)
    kafka.produce(compacted, [b"41"], partition=0, key=b"3")
    assert reading.rest()[-2:] == [b"40", b"41"]
    assert reading.progress().done[f"{compacted}/0"] == "0+42"


def test_a_topic_that_ends_before_it_did_is_an_error(kafka, topic, monkeypatch):
    """Made anew, or its newest records lost, while it is read: never a loop without an end."""
    monkeypatch.setattr(fetcher, "_SHORT_SECONDS", 1.0)
    kafka.produce(topic, numbered(0, 40), partition=0)
    reading = Reading(made(kafka, topic, on_lost="report"))
    (span,) = reading.ledger.lease("one", 0, 0.0)
    assert list(reading.source.read(span, 0)) == numbered(0, 16)
    (span,) = reading.ledger.lease("one", 0, 0.0)
    kafka.delete(topic)
    kafka.create(topic, 2)
    for end in (0, 5):
        kafka.produce(topic, numbered(0, end), partition=0)
        other = made(kafka, topic, on_lost="report")  # a worker that has no connection yet
        with pytest.raises(errors.StreamLost, match=f"{topic}/0 ends before offset 16"):
            list(other.read(span, 0))


def delete(kafka, topic, below):
    admin = kafka.admin()
    for told in admin.delete_records([TopicPartition(topic, 0, below)]).values():
        told.result(30)


def test_records_that_retention_took_are_never_missed_silently(kafka, topic, caplog):
    """Between two lives of a job, and while it reads: an error, or told with their offsets."""
    kafka.produce(topic, numbered(0, 40), partition=0)
    reading = Reading(made(kafka, topic))
    (span,) = reading.ledger.lease("one", 0, 0.0)
    assert list(reading.source.read(span, 0)) == numbered(0, 16)
    reading.ledger.report("one", 0, [span])
    seen = reading.progress()
    delete(kafka, topic, 20)
    lost = f"4 records of {topic}/0 (offsets 16 to 19) that were not trained on are no longer there"
    with pytest.raises(errors.StreamLost, match=r"retention") as told:
        Reading(made(kafka, topic), seen)
    assert lost in str(told.value)
    reading.source = made(kafka, topic)  # the other one had them in its memory
    reading.source.resume(DataProgress())
    with pytest.raises(errors.StreamLost, match=r"retention") as told:
        reading.rest()
    assert lost in str(told.value)
    reading.source._on_lost = "report"
    reading.ledger.remove_worker("one")
    for again in (reading, Reading(made(kafka, topic, on_lost="report"), seen)):
        assert again.rest() == numbered(20, 40)
        assert again.progress().done[f"{topic}/0"] == "0+40"
    assert len([text for text in caplog.messages if lost in text]) == 2
    delete(kafka, topic, 40)  # all of it
    with pytest.raises(errors.StreamLost, match=r"24 records .* \(offsets 16 to 39\)"):
        Reading(made(kafka, topic), seen)
    assert Reading(made(kafka, topic, on_lost="report"), seen).rest() == []


def test_a_record_that_cannot_be_decoded_is_told_by_its_place(kafka, topic, caplog):
    """An error that names it, or a warning, and the records around it are read."""
    kafka.produce(topic, [b"1", b"{", b"3"], partition=1)
    name = f"the record {topic}/1@1 cannot be decoded: JSONDecodeError"

    def decode(record):
        return json.loads(record.value)

    with pytest.raises(errors.StreamLost, match="on_poison") as told:
        Reading(made(kafka, topic, decode=decode)).rest()
    assert name in str(told.value)
    reading = Reading(made(kafka, topic, decode=decode, on_poison="report"))
    assert reading.rest() == [1, 3]
    assert len(reading.spoilt) == 1
    assert name in reading.spoilt[0]
    assert name in caplog.text


def test_what_cannot_be_read_is_told_before_training(kafka, topic):
    """A topic that is missing, an address where nobody is, settings that cannot be."""
    with pytest.raises(errors.InputError, match=r"no topic 'clikcs'; create it"):
        Reading(made(kafka, "clikcs"))
    with pytest.raises(errors.InputError, match=r"no topic 'clikcs'; create it"):
        KafkaDataset(kafka.address, ["clikcs"], group="readers")
    nobody = KafkaConnection("127.0.0.1:1", "readers")
    with pytest.raises(errors.StreamLost, match=r"no broker of 127\.0\.0\.1:1 answers"):
        Reading(KafkaSource(nobody, topic, patience_seconds=0.1))
    with pytest.raises(errors.InputError, match="No such configuration property"):
        Reading(KafkaSource(KafkaConnection(kafka.address, "g", {"fetch.mni": "1"}), topic))
    with pytest.raises(errors.InputError, match="'earliest', 'latest'"):
        made(kafka, topic, start="newest")
    with pytest.raises(errors.InputError, match="'error' or 'report'"):
        made(kafka, topic, on_lost="ignore")


def test_a_topic_that_was_made_anew_is_another_one(kafka, topic):
    """Its offsets mean other records, and its fingerprint, which a checkpoint keeps, differs."""
    before = made(kafka, topic).fingerprint
    assert before == made(kafka, topic).fingerprint
    kafka.delete(topic)
    kafka.create(topic, 2)
    assert made(kafka, topic).fingerprint != before


def test_a_broker_that_is_away_is_waited_for(kafka, topic, caplog):
    """Killed in the middle of a span and started again: the rest comes, and the log names it."""
    for first in range(0, 1000, 100):  # that many batches: one at a time is fetched
        kafka.produce(topic, numbered(first, first + 100), partition=0)
    config = {"fetch.message.max.bytes": "4000", "queued.max.messages.kbytes": "1"}
    connection = KafkaConnection(kafka.address, "readers", config)
    source = KafkaSource(connection, topic)
    reading = Reading(source, shard=1000)
    (span,) = reading.ledger.lease("one", 0, 0.0)
    samples = iter(source.read(span, 0))
    found = [next(samples) for _ in range(10)]
    kafka.stop()
    caplog.set_level(logging.WARNING, "rover_kf")
    back = threading.Timer(4.0, kafka.start)
    back.start()
    found += samples
    back.join()
    assert found == numbered(0, 1000)
    assert f"brokers {kafka.address} have not answered for" in caplog.text
    assert f"brokers {kafka.address} are back" in caplog.text


def test_a_secret_is_read_where_it_is_mounted_and_shown_nowhere(
    kafka, topic, tmp_path, monkeypatch, caplog
):
    """From a file or a variable; a wrong one is refused; none is in errors, logs and pickles."""
    kafka.produce(topic, numbered(0, 3), partition=0)
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "trainer",
    }

    def source(place):
        secrets = {"sasl.password": place}
        return KafkaSource(KafkaConnection(kafka.sasl_address, "readers", options, secrets), topic)

    (tmp_path / "password").write_text(f"{kafka.password}\n")
    monkeypatch.setenv("KAFKA_PASSWORD", kafka.password)
    monkeypatch.setenv("OLD_PASSWORD", wrong := uuid.uuid4().hex)
    for place in (f"file:{tmp_path / 'password'}", "env:KAFKA_PASSWORD"):
        reading = Reading(source(place))
        assert reading.rest() == numbered(0, 3)
        shown = f"{reading.source.connection!r} {pickle.dumps(reading.source)!r} {caplog.text}"
        assert kafka.password not in shown
    with pytest.raises(errors.StreamLost, match="Authentication") as told:
        Reading(source("env:OLD_PASSWORD"))
    assert wrong not in f"{told.value} {caplog.text}"
    with pytest.raises(errors.InputError, match="secretKeyRef"):
        Reading(source("env:NO_PASSWORD"))
    with pytest.raises(errors.InputError, match="name its place instead"):
        KafkaConnection(kafka.address, "readers", {"sasl.password": wrong})
