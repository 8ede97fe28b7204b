# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Promises of a recommendation for any history."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from rover_kf.api.records import JobSignature, RunRecord
from rover_kf.api.samples import Throughput
from rover_kf.recommender import neighbours
from rover_kf.recommender.facts import JobFacts
from rover_kf.recommender.profile import Profile
from rover_kf.recommender.recommend import Constraints, combine

SIGNATURE = JobSignature("team", "digits", "PyTorchJob", "img", "python t.py", 1, 0)
positive = st.floats(1e-3, 1e9)

windows = st.builds(
    lambda k, seconds, end: Throughput(end - 10, end, k, k, 10, 0, seconds, 64.0),
    st.integers(1, 32),
    st.floats(1e-3, 1e3),
    st.floats(10, 1e6),
)
runs = st.builds(
    lambda uid, image, outcome, memory, cpu, rows, save, restarts, updated, replicated: RunRecord(
        uid=str(uid),
        signature=JobSignature("team", "digits", "PyTorchJob", image, "python t.py", 1, 0),
        started_at=0.0,
        updated_at=updated,
        outcome=outcome,
        requested={"replicas": 2.0, "memory": memory},
        peak={"memory": memory, "cpu": cpu},
        windows=tuple(rows),
        save_seconds=save,
        snapshot_bytes=int(memory),
        restarts=restarts,
        replicated=replicated,
    ),
    st.integers(),
    st.sampled_from(["img", "other"]),
    st.sampled_from(["succeeded", "failed", "running", "deleted"]),
    st.floats(1e6, 1e12),
    st.floats(0.01, 256),
    st.lists(windows, max_size=6),
    st.floats(0, 10),
    st.integers(0, 100),
    st.floats(0, 1e8),
    st.sampled_from([None, False, True]),
)
facts = st.builds(
    lambda low, span, replicas, asked: JobFacts(
        SIGNATURE,
        {"replicas": float(replicas), **asked},
        0,
        low,
        low + span,
        50,
        False,  # noqa: FBT003
    ),
    st.integers(1, 8),
    st.integers(0, 24),
    st.integers(1, 32),
    st.sampled_from([{}, {"cpu": 2.0}, {"memory": 4e9}, {"cpu": 2.0, "memory": 4e9}]),
)
profiles = st.none() | st.builds(
    Profile, st.floats(0.1, 60), st.booleans(), st.integers(0, 10**11), st.floats(0, 1e4)
)


@settings(max_examples=150, deadline=None)
@given(facts=facts, rows=st.lists(runs, max_size=6), profile=profiles, most=st.none() | positive)
def test_every_quantity_is_inside_its_interval(facts, rows, profile, most):
    """Always all six quantities: finite, positive, lower <= target <= upper, with a reason and a
    known basis; bounds on replicas and memory are kept. A replica may cost nothing."""
    found = combine(facts, rows, profile, Constraints(max_memory=most))
    assert [q.name for q in found.quantities] == [
        "replicas",
        "cpu",
        "memory",
        "arena",
        "replica",
        "checkpoint_every",
    ]
    for quantity in found.quantities:
        assert quantity.why
        assert quantity.basis in {"history", "profile", "formula", "manifest", "default"}
        assert math.isfinite(quantity.target)
        assert quantity.target > 0 or (quantity.name, quantity.target) == ("replica", 0)
        if quantity.name != "replicas" or quantity.basis == "history":
            assert quantity.lower <= quantity.target <= quantity.upper
    assert found.get("replicas").target <= facts.max_replicas
    if most is not None:
        assert found.get("memory").target <= most


@given(
    st.lists(st.builds(neighbours.Sample, positive, st.floats(0.05, 1)), min_size=1, max_size=20),
    st.floats(0.01, 1),
    st.floats(0.01, 1),
)
def test_quantiles_are_samples_and_monotone(found, one, other):
    """A weighted quantile is one of the values and does not fall as its share grows."""
    low, high = sorted((one, other))
    values = {sample.value for sample in found}
    assert neighbours.quantile(found, low) in values
    assert neighbours.quantile(found, low) <= neighbours.quantile(found, high)
