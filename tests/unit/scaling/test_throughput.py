# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The throughput model on known laws."""

from __future__ import annotations

import pytest

from rover_kf.api.samples import Throughput
from rover_kf.scaling import throughput


def windows(law, worlds, *, batch=lambda _: 256.0, repeat=3):
    return [
        Throughput(
            started_at=10.0 * i,
            ended_at=10.0 * i + 10,
            nodes=world,
            world_size=world,
            steps=10,
            samples=0,
            step_seconds=law(world),
            global_batch=batch(world),
        )
        for i, world in enumerate(w for w in worlds for _ in range(repeat))
    ]


def test_one_size_is_extrapolated_in_proportion():
    """With a single size seen, all time is compute: twice the ranks, twice the throughput."""
    model = throughput.fit(windows(lambda _: 2.0, [2]))
    assert model is not None
    assert model.predict(2).samples_per_second == pytest.approx(128)
    assert model.predict(4).samples_per_second == pytest.approx(256, rel=0.01)
    assert model.predict(1).samples_per_second == pytest.approx(64, rel=0.01)


def test_ring_law_is_recovered():
    """Four sizes of a ring law with a fixed batch predict a size twice as large within 10 %."""

    def law(k):
        return 0.1 + 0.01 * 256 / k + 0.3 * 2 * (k - 1) / k

    model = throughput.fit(windows(law, [1, 2, 3, 4]))
    assert model is not None
    assert model.predict(8).samples_per_second == pytest.approx(256 / law(8), rel=0.1)


def test_flat_law_promises_nothing():
    """A job that gains nothing from a second replica is not promised much from a fourth."""
    model = throughput.fit(windows(lambda _: 1.0, [1, 2]))
    assert model is not None
    gain = model.predict(4).samples_per_second / model.predict(2).samples_per_second
    assert gain < 1.1


def test_batch_that_grows_with_the_ranks_is_noticed():
    """Weak scaling: the step time stays, the batch grows, so throughput grows with it."""
    model = throughput.fit(windows(lambda _: 1.0, [1, 2], batch=lambda k: 32.0 * k))
    assert model is not None
    assert not model.keeps_global_batch
    assert model.predict(4).samples_per_second == pytest.approx(128, rel=0.1)


def test_interval_widens_with_extrapolation():
    """0.2, 0.25 and 0.45 in log space inside, up to twice, and beyond what was seen."""
    model = throughput.fit(windows(lambda k: 4.0 / k, [1, 2]))
    assert model is not None
    widths = [model.predict(k).upper / model.predict(k).samples_per_second for k in (2, 4, 8)]
    assert widths == pytest.approx([1.2214, 1.2840, 1.5683], rel=1e-3)


def test_trainer_that_tells_no_samples_is_reckoned_in_steps():
    """Without samples the model counts steps a second, and does not divide by zero."""
    model = throughput.fit(windows(lambda _: 0.5, [2], batch=lambda _: 0.0))
    assert model is not None
    assert model.predict(2).samples_per_second == pytest.approx(2.0)


def test_no_steps_no_model():
    """Windows without a step say nothing."""
    assert throughput.fit([]) is None
    assert throughput.fit(windows(lambda _: 0.0, [1])) is None


def test_outlier_and_old_windows_do_not_matter():
    """Only the median of the newest five windows of a size counts."""
    rows = windows(lambda _: 9.0, [2], repeat=4) + windows(lambda _: 1.0, [2], repeat=4)
    rows += windows(lambda _: 30.0, [2], repeat=1)
    model = throughput.fit(rows)
    assert model is not None
    assert model.predict(2).samples_per_second == pytest.approx(256)


def test_world_below_one_is_refused():
    """There is no throughput without a rank."""
    model = throughput.fit(windows(lambda _: 1.0, [1]))
    assert model is not None
    with pytest.raises(ValueError, match="0"):
        model.predict(0)
