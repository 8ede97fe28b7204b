# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The throughput model on known laws."""

from __future__ import annotations

import dataclasses

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


def test_one_size_is_extrapolated_nearly_in_proportion():
    """With a single size seen, all but a seventh of the time is taken to shrink with the batch."""
    model = throughput.fit(windows(lambda _: 2.0, [2]))
    assert model is not None
    assert model.predict(2).samples_per_second == pytest.approx(128)
    assert model.predict(4).samples_per_second == pytest.approx(256 / 1.15, rel=0.01)
    assert model.predict(1).samples_per_second == pytest.approx(64 / 0.925, rel=0.01)


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
    """0.05, 0.25 and 0.45 in log space at a size seen, up to twice, and beyond."""
    model = throughput.fit(windows(lambda k: 4.0 / k, [1, 2]))
    assert model is not None
    widths = [model.predict(k).upper / model.predict(k).samples_per_second for k in (2, 4, 8)]
    assert widths == pytest.approx([1.0513, 1.2840, 1.5683], rel=1e-3)


def test_interval_widens_with_errors_of_the_job_itself():
    """Where the third size was half of what the first two promised, the next is trusted less."""
    law = {1: 4.0, 2: 2.2, 4: 2.6}
    usual = throughput.fit(windows(lambda k: 4.0 / k, [1, 2, 4]))
    odd = throughput.fit(windows(lambda k: law[k], [1, 2, 4]))
    assert usual is not None
    assert odd is not None
    assert odd.spread(8) > 1.5 * usual.spread(8)


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


def test_a_ring_between_nodes_is_another_than_in_one():
    """Pods of four ranks: what one pod's ring takes says nothing of the network between two."""

    def seconds(nodes, world, batch):
        ring = 2 * (world - 1) / world
        return 0.05 + 0.002 * batch + ring * (0.02 if nodes == 1 else 0.2)

    places = [(1, 1), (1, 2), (1, 4), (2, 2), (3, 4)]
    seen = [
        Throughput(0.0, 60.0, n, k, 9, 0, seconds(n, k, b), float(b * k))
        for n, k in places
        for b in (16, 32)
    ]
    model = throughput.fit(seen)
    assert model is not None
    for nodes, world in ((1, 3), (4, 16), (2, 8)):
        found = model.step_seconds(world, global_batch=24.0 * world, nodes=nodes)
        assert found == pytest.approx(seconds(nodes, world, 24), rel=0.05)


def test_what_another_code_showed_is_forgotten():
    """A size whose steps take twice as long now: what other sizes showed before counts no more."""
    old = windows(lambda k: 4.0 / k, [1, 2], repeat=5)
    new = windows(lambda k: 8.0 / k, [2], repeat=2)
    model = throughput.fit([*old, *new])
    assert model is not None
    assert [median.world_size for median in model.medians] == [2]
    assert model.predict(2).samples_per_second == pytest.approx(64)
    for later in range(1, 9):  # for good: it is not remembered once the change is long ago
        model = throughput.fit([*old, *new, *windows(lambda k: 8.0 / k, [2], repeat=later)])
        assert model is not None
        assert [median.world_size for median in model.medians] == [2]
    one_straggler = throughput.fit([*old, *new[:1]])
    assert one_straggler is not None
    assert one_straggler.predict(2).samples_per_second == pytest.approx(128)


def test_a_new_batch_is_another_row():
    """After a change of batch the size counts by its new batch; the old one still tells the law."""
    rows = windows(lambda _: 1.0, [2], repeat=3)
    later = windows(lambda _: 1.8, [2], batch=lambda _: 512.0, repeat=6)[3:]
    model = throughput.fit([*rows, *later])
    assert model is not None
    assert model.rate(2) == pytest.approx(512 / 1.8)
    assert len(model.medians) == 2
    assert model.step_seconds(2, global_batch=384.0) == pytest.approx(1.4, rel=0.05)


def test_windows_full_of_saves_do_not_count_beside_others():
    """A checkpoint's window tells of checkpoints."""
    quiet = windows(lambda _: 1.0, [2], repeat=1)
    saving = [
        dataclasses.replace(row, save_seconds=6.0) for row in windows(lambda _: 5.0, [2], repeat=4)
    ]
    model = throughput.fit([*quiet, *saving])
    assert model is not None
    assert model.rate(2) == pytest.approx(256)
    assert throughput.fit(saving) is not None


def test_world_below_one_is_refused():
    """There is no throughput without a rank."""
    model = throughput.fit(windows(lambda _: 1.0, [1]))
    assert model is not None
    with pytest.raises(ValueError, match="0"):
        model.predict(0)
