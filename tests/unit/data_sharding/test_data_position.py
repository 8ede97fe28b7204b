# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The place in the data that TensorFlow's checkpoints keep: read again, or refused with reasons."""

from __future__ import annotations

import dataclasses
import json

import pytest

from rover_kf import errors
from rover_kf.api.data import DataPlan, DataProgress, Partition
from rover_kf.data_sharding import data_position
from rover_kf.trainer.tensorflow import scheduled_records

PLAN = DataPlan("rows", (Partition("", 0, 100),), 32, epochs=3, order="shuffled by seed 0")
KEPT = data_position.to_text(PLAN, DataProgress(1, {"": "0+64"}))


def test_it_comes_back_as_it_was():
    """Also with another number of epochs, or batches: neither changes which records are done."""
    longer = dataclasses.replace(PLAN, epochs=9, shard=48)
    for plan in (PLAN, longer):
        assert data_position.from_text(plan, KEPT) == DataProgress(1, {"": "0+64"})


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (dataclasses.replace(PLAN, name="other"), "name 'rows', this data set has 'other'"),
        (dataclasses.replace(PLAN, fingerprint="b"), "fingerprint '', this data set has 'b'"),
        (dataclasses.replace(PLAN, order="as it is"), "order 'shuffled by seed 0'"),
        (dataclasses.replace(PLAN, partitions=(Partition("", 0, 99),)), "slots"),
    ],
)
def test_that_of_other_data_is_refused(plan, says):
    """Its ranges would be of other records."""
    with pytest.raises(errors.CheckpointError, match=says):
        data_position.from_text(plan, KEPT)


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({**json.loads(KEPT), "version": 2})])
def test_what_cannot_be_read_is_refused(text):
    """Nobody begins anew without being told."""
    with pytest.raises(errors.CheckpointError, match="'rows'"):
        data_position.from_text(PLAN, text)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"batch": 0}, "batches of 0 records"),
        ({"batch": 8, "ahead": -1}, "-1 batches ahead"),
        ({"batch": 8, "epochs": 0}, "0 epochs"),
        ({"batch": 8, "samples": 0}, "nothing to train on"),
        ({"batch": 8}, "TF_CONFIG is not set"),
    ],
)
def test_records_that_cannot_be_handed_out_are_refused(given, says, monkeypatch):
    """Before anything is leased."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(errors.InputError, match=says):
        scheduled_records.ScheduledRecords(None, **{"samples": 100, **given})
