# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Promises of a recommendation for any history."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rover_kf.api.cluster_capacity import Headroom
from rover_kf.api.records import JobSignature, RunRecord
from rover_kf.api.samples import Throughput
from rover_kf.recommender import size_evidence
from rover_kf.recommender.constraints import Constraints, required
from rover_kf.recommender.gpu_memory import (
    PRECISIONS,
    STRATEGIES,
    DeviceMemoryModel,
    ParallelConfig,
)
from rover_kf.recommender.job_signature import JobFacts
from rover_kf.recommender.price import PriceTable
from rover_kf.recommender.profile import MemoryFootprint, ModelState, Profile, Trial
from rover_kf.recommender.recommend import combine_evidence

SIGNATURE = JobSignature("team", "digits", "PyTorchJob", "img", "python t.py", 1, 0)
ALWAYS = ("replicas", "processes", "cpu", "memory", "arena", "replica", "checkpoint_every")
SOMETIMES = ("accelerator_memory", "batch", "storage_bandwidth", "storage_rate")
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
    """Always these: finite, positive, lower <= target <= upper, with a reason and a known basis;
    bounds on replicas and memory are kept. A replica may cost nothing."""
    found = combine_evidence(facts, rows, profile, Constraints(max_memory=most))
    assert set(ALWAYS) <= {q.name for q in found.quantities} <= {*ALWAYS, *SOMETIMES}
    for quantity in found.quantities:
        assert quantity.why
        assert quantity.basis in {"history", "profile", "formula", "manifest", "default"}
        assert math.isfinite(quantity.target)
        assert quantity.target > 0 or (quantity.name, quantity.target) == ("replica", 0)
        assert quantity.lower <= quantity.target <= quantity.upper
    assert found.get("replicas").target <= facts.max_replicas
    if most is not None:
        assert found.get("memory").target <= most


@given(
    st.lists(
        st.builds(size_evidence.WeightedSample, positive, st.floats(0.05, 1)),
        min_size=1,
        max_size=20,
    ),
    st.floats(0.01, 1),
    st.floats(0.01, 1),
)
def test_quantiles_are_samples_and_monotone(found, one, other):
    """A weighted quantile is one of the values and does not fall as its share grows."""
    low, high = sorted((one, other))
    values = {sample.value for sample in found}
    assert size_evidence.quantile(found, low) in values
    assert size_evidence.quantile(found, low) <= size_evidence.quantile(found, high)


trials = st.builds(
    lambda batch, base, each, own, more: tuple(
        Trial(
            batch=size,
            step_seconds=base + each * size,
            wait_seconds=0.0,
            cores=1.0,
            footprint=MemoryFootprint(own + more * size, 10**8),
            forward_peak=own + more * size,
            update_peak=own,
        )
        for size in (batch, 2 * batch)
    ),
    st.integers(1, 512),
    st.floats(1e-3, 1),
    st.floats(1e-6, 1),
    st.integers(10**7, 10**10),
    st.integers(0, 10**8),
)
states = st.builds(
    ModelState,
    st.integers(1, 10**9),
    st.integers(1, 4 * 10**9),
    st.integers(0, 4 * 10**9),
    st.integers(0, 10**8),
    st.integers(0, 8 * 10**9),
    st.integers(0, 10**8),
)
dry_runs = st.builds(
    lambda tried, state, copy: Profile(
        seconds=10.0,
        exited=True,
        peak_memory=tried[-1].footprint.total,
        cpu_seconds=10.0,
        step_seconds=tried[-1].step_seconds,
        snapshot_bytes=state.snapshot_bytes,
        trials=tried,
        state=dataclasses.replace(state, copy_seconds=copy),
    ),
    trials,
    states,
    st.floats(0, 10),
)
rooms = st.builds(
    Headroom,
    cpu=st.none() | st.floats(0, 100),
    memory=st.none() | st.floats(0, 1e12),
    pods=st.none() | st.integers(0, 50).map(float),
)


@settings(max_examples=80, deadline=None)
@given(
    facts=facts,
    rows=st.lists(runs, max_size=3),
    profile=dry_runs | profiles,
    nodes=st.lists(rooms, max_size=3),
    quotas=st.lists(rooms, max_size=2),
    device=st.none() | st.floats(1e6, 1e12),
)
def test_what_is_recommended_can_be_had(facts, rows, profile, nodes, quotas, device):  # noqa: PLR0917 - drawn
    """All pods go into each quota and onto the nodes, or a note says that they do not; proposals
    fit; a dearer price costs more."""
    limits = Constraints(nodes=tuple(nodes), quotas=tuple(quotas), accelerator_memory=device)
    prices = PriceTable(cpu=0.1, memory=0.01, currency="EUR")
    found = combine_evidence(facts, rows, profile, limits, prices=prices)
    sizes = {item.name: item for item in found.quantities}
    assert all(item.lower <= item.target <= item.upper for item in found.quantities)
    pod = required(sizes["cpu"], sizes["memory"], sizes["arena"], 0)
    fits = sizes["replicas"].target <= limits.replicas(pod)
    assert fits or any("room for" in note for note in found.notes)
    for proposal in found.proposals:
        assert proposal.fits
        assert device is None or proposal.memory <= device
    assert 0 < found.cost.lower <= found.cost.per_hour <= found.cost.upper
    double = PriceTable(cpu=0.2, memory=0.02, currency="EUR")
    again = combine_evidence(facts, rows, profile, limits, prices=double).cost
    assert again.per_hour == pytest.approx(2 * found.cost.per_hour)


@settings(max_examples=150, deadline=None)
@given(
    state=states,
    constant=st.floats(0, 1e10),
    slope=st.floats(0, 1e8),
    strategy=st.sampled_from(STRATEGIES),
    precision=st.sampled_from(PRECISIONS),
    batches=st.tuples(st.integers(0, 4096), st.integers(0, 4096)),
    worlds=st.tuples(st.integers(2, 512), st.integers(2, 512)),
)
def test_memory_is_monotone(state, constant, slope, strategy, precision, batches, worlds):  # noqa: PLR0917 - drawn
    """More batch never takes less memory, more processes never more; what fits, fits."""
    device, way = (
        DeviceMemoryModel(state, constant, slope, 32),
        ParallelConfig(strategy, 1, precision),
    )
    (low, high), (few, many) = sorted(batches), sorted(worlds)
    assert device.bytes_at(low, way, few) <= device.bytes_at(high, way, few)
    assert device.bytes_at(low, way, many) <= device.bytes_at(low, way, few) * (1 + 1e-9)
    limit = device.bytes_at(high, way, few)
    most = device.max_batch(limit, way, few)
    if slope > 1e-3:
        assert high - 1 <= most <= high + 1
