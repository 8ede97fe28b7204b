# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How far loaders are, put together from what ranks report, and as metrics."""

from __future__ import annotations

from rover_kf.api.data import DataStatus, PoisonedShard, SlotSpan, WorkerShare
from rover_kf.api.samples import DataPosition, Goodput, StepReport
from rover_kf.api.status import CoordinatorStatus
from rover_kf.metrics import exporter
from rover_kf.metrics.dataset_progress import WINDOW_SECONDS, DatasetProgress


def _heard(places: DatasetProgress, rank: int, at: float, *told: DataPosition) -> None:
    places.on_report(StepReport(rank, 2, 1, (), data=told), at)


def test_an_epoch_has_a_rate_and_an_end():
    """Of the rank that is farthest; each rank's share is what it says."""
    places = DatasetProgress()
    assert places.status(5.0) == ()
    _heard(places, 0, 0.0, DataPosition("loader", 0, 1000, 100, 60, 32))
    (first,) = places.status(0.0)
    assert (first.rate, first.eta_seconds) == (0.0, None)
    for second in range(1, 11):
        for rank, taken in ((0, 60), (1, 40)):
            done = 100 + 20 * second
            place = DataPosition("loader", 0, 1000, done, taken * second // 10, 32)
            _heard(places, rank, float(second), place)
    (told,) = places.status(10.0)
    assert (told.done, told.slots, told.outstanding, told.epochs) == (300, 1000, 64, 0)
    assert told.rate == 20.0
    assert told.eta_seconds == 35.0
    assert told.workers == (WorkerShare("0", 60, 32), WorkerShare("1", 40, 32))


def test_epochs_follow_each_other_and_old_looks_are_forgotten():
    """The rate is of the last minute, over the end of an epoch; who stands still has none."""
    places = DatasetProgress()
    for second in range(200):
        epoch, done = divmod(second * 10, 500)
        _heard(places, 0, float(second), DataPosition("loader", epoch, 500, done))
    (told,) = places.status(199.0)
    assert (told.epoch, told.done, told.rate) == (3, 490, 10.0)
    (later,) = places.status(199.0 + 540.0)
    assert later.rate == 10.0 * WINDOW_SECONDS / (WINDOW_SECONDS + 540.0)
    places.begin()
    assert places.status(200.0) == ()


def test_no_job_can_fill_the_memory():
    """Names beyond the bound are not kept."""
    places = DatasetProgress()
    for number in range(40):
        _heard(places, 0, 0.0, DataPosition(f"loader {number}", 0, 10, 1))
    assert len(places.status(1.0)) == 16


def test_metrics_of_data():
    """Progress, rate, time left, what is lent, whose it is, and what was set aside."""
    data = DataStatus(
        *("train", 1, 3, 5000, 1234, 64, 8, 120.4, 73.2),
        poison=(PoisonedShard(SlotSpan("", 32, 40), 3, "broken"),),
        workers=(WorkerShare("1/p9", 900, 32), WorkerShare("1/p3", 20, 0), WorkerShare("0", 3, 1)),
    )
    stream = DataStatus("clicks", 0, 1, 0, 0, 0, 0, 0.0)
    status = CoordinatorStatus(
        *("digits", "training", 1, 2, 2, 2, 100, None, None, None, 10.0, 0),
        windows=(),
        goodput=Goodput(),
        events=(),
        started_at=0.0,
        now=1.0,
        data=(data, stream),
    )
    lines = exporter.render("w-0", "digits", status).decode().splitlines()
    for name, value in (
        *(("epoch", 1.0), ("slots", 5000.0), ("done", 1234.0), ("outstanding", 64.0)),
        *(("poisoned", 8.0), ("rate", 120.4), ("eta_seconds", 73.2)),
    ):
        assert f'rover_kf_data_{name}{{data="train",job="digits"}} {value}' in lines
    assert 'rover_kf_data_rank_used{data="train",job="digits",rank="1"} 920.0' in lines
    assert 'rover_kf_data_rank_outstanding{data="train",job="digits",rank="0"} 1.0' in lines
    assert not any("eta_seconds" in line and "clicks" in line for line in lines)
