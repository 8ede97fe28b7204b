# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints stay besides the newest, and how the numbers that decide it travel."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rover_kf import errors
from rover_kf.checkpoint.format import manifest, metrics
from rover_kf.checkpoint.format.manifest import CheckpointFolder
from rover_kf.checkpoint.format.snapshot import Snapshot
from rover_kf.checkpoint.storage import retention
from rover_kf.checkpoint.storage.retention import KeepBest, RetentionExceptions
from tests.support.states import identities


def _folder(step: int, generation: int = 1) -> CheckpointFolder:
    return CheckpointFolder(
        identities.state(step, generation), manifest.folder_name(identities.state(step, generation))
    )


@pytest.mark.parametrize(
    ("spare", "steps"),
    [
        (RetentionExceptions(), []),
        (RetentionExceptions(every=20), [20, 40]),
        (RetentionExceptions(best=KeepBest("accuracy", highest=True, count=1)), [40]),
        (RetentionExceptions(best=KeepBest("accuracy", highest=True, count=3)), [20, 30, 40]),
        (RetentionExceptions(best=KeepBest("accuracy", highest=False, count=1)), [10]),
        (RetentionExceptions(best=KeepBest("loss", highest=False, count=9)), [30]),
        (RetentionExceptions(best=KeepBest("nothing", highest=True, count=9)), []),
        (
            RetentionExceptions(every=30, best=KeepBest("accuracy", highest=False, count=1)),
            [10, 30],
        ),
    ],
)
def test_what_is_spared(spare, steps):
    """Of equal ones the newer; what a metric was not given for does not count."""
    good = {
        _folder(10): {"accuracy": 0.1},
        _folder(20): {"accuracy": 0.9},
        _folder(30): {"accuracy": 0.9, "loss": 3.0},
        _folder(40): {"accuracy": 0.9},
        _folder(50): {},
    }
    assert sorted(folder.step for folder in spare.select(good)) == steps


numbers = st.dictionaries(st.sampled_from(["accuracy", "loss"]), st.floats(-9, 9), max_size=2)


@given(
    st.dictionaries(st.tuples(st.integers(1, 60), st.integers(1, 3)), numbers, max_size=12),
    st.integers(0, 4),
    st.integers(0, 7),
    st.none() | st.builds(KeepBest, st.just("loss"), st.booleans(), st.integers(1, 3)),
)
def test_retention_decided_again_removes_nothing_more(made, keep, every, best):
    """And never the newest, nor one whose step is divided, nor a best one."""
    good = {_folder(step, generation): metrics for (step, generation), metrics in made.items()}
    spare = RetentionExceptions(every, best)
    gone = retention.deletable(
        good, list(good), keep=keep, current=identities.round_id(3), spared=spare.select(good)
    )
    left = {folder: metrics for folder, metrics in good.items() if folder not in gone}
    assert set(sorted(good)[-max(keep, 1) :]) <= left.keys()
    assert {folder for folder in good if every and folder.step % every == 0} <= left.keys()
    values = sorted(metrics["loss"] for metrics in good.values() if "loss" in metrics)
    if best is not None and values:
        assert (values[-1] if best.highest else values[0]) in [
            metrics.get("loss") for metrics in left.values()
        ]
    assert (
        retention.deletable(
            left, list(left), keep=keep, current=identities.round_id(3), spared=spare.select(left)
        )
        == ()
    )


@pytest.mark.parametrize("text", ["loss:min:1", "val/top 1:max:12"])
def test_a_rule_is_written_as_it_is_read(text):
    """In the policy, in the sidecar's environment."""
    assert str(KeepBest.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["loss", "loss:min", "loss:best:1", "loss:min:0", ":min:1", "a:b:min:1"]
)
def test_another_form_is_refused(text):
    """With the form that is wanted."""
    with pytest.raises(errors.InputError, match="metric:max:count"):
        KeepBest.parse(text)


def test_of_a_frameworks_metrics_numbers_alone_are_told():
    """What else it logs was not given for this, and is no error."""
    logged = {"loss": 0.5, "epoch": 2, "table": [1, 2], "note": "good", "done": True}
    assert metrics.numeric_only(logged) == {"loss": 0.5, "epoch": 2.0}
    assert metrics.numeric_only(None) == {}


def test_metrics_travel_in_a_snapshots_metadata():
    """Numbers by name; what is not finite counts as not measured, nothing is no entry at all."""
    told = {"accuracy": 1, "loss": float("nan"), "top": float("inf"), "lr": 1e-3}
    metadata = metrics.to_metadata(told)
    assert metrics.read_metrics(Snapshot({}, metadata, 0)) == {"accuracy": 1.0, "lr": 1e-3}
    for nothing in (None, {}, {"loss": float("nan")}):
        assert metrics.to_metadata(nothing) == {}
    assert metrics.read_metrics(Snapshot({}, {}, 0)) == {}


@pytest.mark.parametrize("value", ["high", None, [1]])
def test_a_metric_that_is_no_number_is_named(value):
    """At save, in the script that gives it."""
    with pytest.raises(errors.InputError, match="'accuracy'"):
        metrics.to_metadata({"accuracy": value})


@pytest.mark.parametrize("text", ["{", "[1]", json.dumps({"a": "x"})])
def test_damaged_metrics_are_torn(text):
    """As any other damage of a header."""
    with pytest.raises(errors.CorruptSnapshot, match="metrics"):
        metrics.read_metrics(Snapshot({}, {metrics.METRICS_KEY: text}, 0))
