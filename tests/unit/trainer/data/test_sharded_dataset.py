# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Leased data as a script uses it, in one process outside rover-kf."""

from __future__ import annotations

import collections
import functools
import itertools

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from torch.utils.data import DataLoader

from rover_kf import ElasticDataLoader, ShardedDataset, errors
from rover_kf.api.data import SlotSpan, UnreadableSpan
from rover_kf.data_sharding.dispatcher import ShardDispatcher
from rover_kf.data_sharding.ledger import LeaseTerms
from rover_kf.data_sharding.ledger_source import SlotMarker, UnusableRecord
from rover_kf.datasets.tables import TableRows
from rover_kf.trainer.data import lease_client
from rover_kf.trainer.data.worker_reads import WorkerReads
from tests.support.training.numbered_samples import Numbered


@pytest.fixture
def sharded():
    """Makes data sets, and ends their leases."""
    made: list[ShardedDataset] = []

    def make(data=None, **changes) -> ShardedDataset:
        made.append(ShardedDataset(data or Numbered(20), **{"shard_size": 4, **changes}))
        return made[-1]

    yield make
    for data in made:
        data.close()


def test_each_sample_once_an_epoch(sharded):
    """In an order of its own each time."""
    data = sharded(epochs=2)
    loader = data.loader(3)
    orders = []
    while data.epoch < 2:
        orders.append([sample for batch in loader for sample in batch.tolist()])
    assert [sorted(order) for order in orders] == [list(range(20))] * 2
    assert orders[0] != orders[1]
    assert list(loader) == []


def test_what_workers_fetch_ahead_is_not_done(sharded):
    """Two workers have fetched batches when the first is trained on: the place is after that one,
    in the middle of the loop's body, and the next life has the rest."""
    data, seen = sharded(), []
    for batch in data.loader(3, num_workers=2):
        seen += batch.tolist()
        assert data.done == len(seen)
        saved = data.state_dict()
        break
    again = sharded()
    again.load_state_dict(saved)
    rest = [sample for batch in again.loader(5) for sample in batch.tolist()]
    assert sorted(seen + rest) == list(range(20))
    assert again.epoch == 1


def test_a_loop_that_is_left_goes_on_where_it_was(sharded):
    """The same loader, iterated again; another one of the same data as well."""
    data = sharded()
    loader = data.loader(3)
    counts = collections.Counter(next(iter(loader)).tolist())
    counts.update(next(iter(loader)).tolist())
    counts.update(sample for batch in data.loader(7) for sample in batch.tolist())
    assert counts == dict.fromkeys(range(20), 1)


def test_a_function_of_a_range_and_slots_that_hold_nothing(sharded):
    """Two of three slots are empty: the loop never sees them."""
    read = lambda numbers: [SlotMarker.EMPTY if n % 3 else n for n in numbers]  # noqa: E731
    data = sharded(read, samples=20)
    assert sorted(data) == list(range(0, 20, 3))
    assert data.epoch == 1


def test_where_most_reads_fail_it_is_said(sharded):
    """A reader that is broken must not have all its data set aside."""

    def broken(numbers):
        raise OSError(f"no disk for {numbers}")

    data = sharded(broken, samples=1000)
    with pytest.raises(errors.InputError, match=r"16 reads .* of 64 slots, .* no disk for range"):
        list(data.loader(4))


class Damaged(Numbered):
    """Some samples lie in a part of a file that is damaged."""

    def __getitem__(self, index):
        if index in (3, 11):
            raise errors.DatasetReadError(f"rows.parquet, row group {index}: cannot be read")
        return super().__getitem__(index)


def test_only_what_is_damaged_is_set_aside(sharded, monkeypatch, caplog):
    """A shuffled order has samples of all files in each batch: the others of it are read."""
    monkeypatch.setattr(
        lease_client,
        "ShardDispatcher",
        functools.partial(ShardDispatcher, LeaseTerms(tries=2, retry_seconds=0.0)),
    )
    data = sharded(Damaged(20))
    assert sorted(data) == [number for number in range(20) if number not in (3, 11)]
    assert data.epoch == 1
    assert "rows.parquet, row group 3" in caplog.text
    assert "rows.parquet, row group 11" in caplog.text


def test_of_a_damaged_parquet_file_the_other_row_groups_are_trained_on(
    sharded, monkeypatch, caplog, tmp_path
):
    """Bytes of a real file are wrong: the rows of that group, and no others, are set aside."""
    path = tmp_path / "rows.parquet"
    numbers = np.random.default_rng(1).permutation(400)
    parquet.write_table(pa.table({"number": numbers}), path, row_group_size=20)
    begin = parquet.read_metadata(path).row_group(3).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[begin : begin + 8] = b"\xff" * 8
    path.write_bytes(content)
    monkeypatch.setattr(
        lease_client,
        "ShardDispatcher",
        functools.partial(ShardDispatcher, LeaseTerms(tries=1, retry_seconds=0.0)),
    )
    data = sharded(TableRows(path), shard_size=20)
    found = [number for batch in data.loader(16) for number in batch["number"].tolist()]
    assert sorted(found) == sorted([*numbers[:60].tolist(), *numbers[80:].tolist()])
    assert data.epoch == 1
    assert "rows.parquet: row group 3 of 20" in caplog.text


class Pictures(Numbered):
    """A data set of a user's own, one file a sample; number 5 is damaged."""

    def __getitem__(self, number: int) -> int:
        if number == 5:
            raise errors.DatasetReadError("dog/x.img: begins with noise")
        return super().__getitem__(number)


def test_a_sample_that_a_dataset_cannot_read_is_set_aside_alone(sharded, monkeypatch, caplog):
    """With the data set's own message; in a fixed order the loop ends there."""
    monkeypatch.setattr(
        lease_client,
        "ShardDispatcher",
        functools.partial(ShardDispatcher, LeaseTerms(tries=2, retry_seconds=0.0)),
    )
    data = sharded(Pictures(20))
    found = sorted(sample for batch in data.loader(3) for sample in batch.tolist())
    assert found == [number for number in range(20) if number != 5]
    assert data.epoch == 1
    assert "dog/x.img: begins with noise" in caplog.text
    with pytest.raises(errors.DatasetReadError, match=r"dog/x\.img: begins with noise"):
        list(ElasticDataLoader(Pictures(20), 4, rank=0, world_size=1, num_workers=1))


@pytest.mark.parametrize(
    "made",
    [
        lambda data: ElasticDataLoader(data, 3, rank=0, world_size=1),
        lambda data: ShardedDataset(data, shard_size=2),
    ],
)
def test_a_place_in_contents_with_another_fingerprint_is_refused(made):
    """As many samples; a data set's own attribute says what they are."""
    data = Numbered(20)
    data.fingerprint = "first"
    state = made(data).state_dict()
    made(data).load_state_dict(state)
    data.fingerprint = "second"
    with pytest.raises(errors.CheckpointError, match=r"fingerprint.*train on the same data"):
        made(data).load_state_dict(state)


def test_records_of_which_nothing_can_be_made_are_used(sharded):
    """The loop never sees them, and is told of none twice."""
    read = lambda numbers: [UnusableRecord("no JSON") if n == 7 else n for n in numbers]  # noqa: E731
    data = sharded(read, samples=20)
    assert sorted(data) == [number for number in range(20) if number != 7]
    reads = WorkerReads(data.source, list)
    assert reads[0, (SlotSpan("", 4, 8),)].unusable == (
        UnreadableSpan(SlotSpan("", 7, 8), "no JSON"),
    )


def test_a_reader_that_gives_another_number_is_told(sharded):
    """By what came."""
    data = sharded(lambda _: [1], samples=1000)
    with pytest.raises(errors.InputError, match="1 samples came for 4 slots"):
        list(data.loader(4))


@pytest.mark.parametrize(
    ("data", "changes", "says"),
    [
        (Numbered(0), {}, "is empty"),
        (Numbered(5), {"shard_size": 0}, "shards of 0"),
        (Numbered(5), {"epochs": 0}, "0 epochs"),
        (print, {"samples": -1}, "-1 samples"),
        (print, {}, "neither by index nor by range"),
        (itertools.count(), {}, "neither by index nor by range"),
    ],
)
def test_wrong_input_is_told_before_training(data, changes, says):
    """When the data set is made."""
    with pytest.raises(errors.InputError, match=says):
        ShardedDataset(data, **changes)


def test_wrong_loaders_are_told(sharded):
    """When they are made; a DataLoader's workers when they begin."""
    data = sharded()
    with pytest.raises(errors.InputError, match="a batch of -1"):
        data.loader(-1)
    with pytest.raises(errors.InputError, match="shuffle cannot be given"):
        data.loader(4, shuffle=True)
    with pytest.raises(errors.InputError, match=r"use data.loader"):
        list(DataLoader(data, num_workers=1))
    with pytest.raises(TypeError, match="not known before"):
        len(data.loader(4))


@pytest.mark.parametrize(
    ("data", "changes", "says"),
    [
        (Numbered(21), {}, "slots"),
        (Numbered(20), {"fingerprint": "b"}, "fingerprint"),
        (Numbered(20), {"seed": 1}, "order"),
        (Numbered(20), {"name": "other"}, "name"),
    ],
)
def test_a_place_in_other_data_is_refused(sharded, data, changes, says):
    """By what differs."""
    saved = sharded(fingerprint="a").state_dict()
    with pytest.raises(errors.CheckpointError, match=says):
        sharded(data, **{"fingerprint": "a", **changes}).load_state_dict(saved)
    with pytest.raises(errors.CheckpointError, match="version 9"):
        sharded().load_state_dict({**saved, "version": 9})


def test_processes_that_cannot_tell_each_other_are_refused(sharded, monkeypatch):
    """Without a process group and not shared: each sample would count as often as there are."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(errors.InputError, match="no process group"):
        next(iter(sharded().loader(4)))


def test_outside_rover_each_rank_has_its_part(sharded, monkeypatch):
    """Of a shared model's data: there is nobody to ask."""
    monkeypatch.setenv("WORLD_SIZE", "3")
    counts: collections.Counter[int] = collections.Counter()
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        counts.update(sharded(shared=True))
    assert counts == dict.fromkeys(range(20), 1)


@pytest.mark.parametrize(("shared", "told_when_given"), [(True, 0), (False, 1)])
def test_of_a_shared_model_a_batch_is_told_after_it_was_trained_on(
    sharded, monkeypatch, shared, told_when_given
):
    """Told as it is given, it could be in a place that is kept before the model has it, and be lost
    with its process; where ranks step together the place is theirs, and is kept after the step."""
    data = sharded(shared=shared)
    loader = data.loader(4)
    leases, told = data.leases(8, 1), []
    monkeypatch.setattr(leases, "mark_used", lambda spans, **_: told.append(spans))
    batches = iter(loader)
    next(batches)
    assert len(told) == told_when_given
    next(batches)
    assert len(told) == told_when_given + 1
