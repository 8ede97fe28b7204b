# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Steps of workers with parameter servers: by published points, by a known law, by windows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rover_kf.api.records import ServerSetup
from rover_kf.api.samples import Throughput
from rover_kf.scaling import ps_model
from rover_kf.scaling.ps_model import PsRow

BASE = ServerSetup(0.0, workers=6, servers=6, worker_cores=8.0, server_cores=8.0)
PANELS = {
    ("servers", 6): {4: 37.2, 8: 45.4, 12: 53.6, 16: 61.5, 20: 61.7, 24: 65.6, 28: 69.7, 32: 73.8},
    ("worker_cores", 6): {2: 61.6, 4: 86.1, 6: 94.6, 8: 102.5, 10: 106.6, 12: 114.8, 14: 123.0,
                          16: 135.0},
    ("server_cores", 6): {1: 49.4, 2: 73.9, 3: 78.0, 4: 82.0, 5: 86.2, 6: 90.6, 7: 94.3, 8: 98.4},
    ("server_cores", 9): {1: 36.3, 2: 57.3, 3: 73.7, 6: 114.8, 7: 118.8, 8: 123.0},
    ("server_cores", 12): {1: 69.7, 2: 94.2, 3: 106.6, 4: 122.9, 5: 143.3, 6: 158.5, 8: 167.7},
}  # fmt: skip
"""Thousands of samples a second that were measured on a cluster of others (DLRover's figure of
fitted models, read off its dots to a hundredth), by what is varied and the workers. What else was
set is not told, and differs between them; of those with nine workers, neither is that."""


def rows(field, workers):
    return [
        PsRow(
            dataclasses.replace(
                BASE, workers=workers, **{field: type(getattr(BASE, field))(value)}
            ),
            1.0,
            workers / rate,
        )
        for value, rate in PANELS[field, workers].items()
    ]


def error(shown, asked):
    """Mean relative error of rates that were not shown."""
    model = ps_model.fit(shown)
    return float(
        np.mean(
            [
                abs(model.steps_per_second(row.setup) * row.seconds / row.setup.workers - 1)
                for row in asked
            ]
        )
    )


@pytest.mark.parametrize(
    ("panel", "most"), [*zip(PANELS, (0.08, 0.08, 0.08, 0.08, 0.12), strict=True)]
)
def test_a_setup_between_those_that_were_measured(panel, most):
    """Each point by all the others."""
    found = rows(*panel)
    errors = [error([*found[:i], *found[i + 1 :]], [row]) for i, row in enumerate(found)]
    print(panel, f"{np.mean(errors):.1%}")
    assert np.mean(errors) < most


@pytest.mark.parametrize(("panel", "most"), [*zip(PANELS, (0.1, 0.1, 0.1, 0.16, 0.2), strict=True)])
def test_twice_of_what_was_measured(panel, most):
    """The upper half by the lower one."""
    found = rows(*panel)
    half = len(found) // 2
    far = error(found[:half], found[half:])
    print(panel, f"{far:.1%}")
    assert far < most


TERMS = (0.05, 0.4, 0.15, 0.02, 0.01)


def true_seconds(setup, batch=64.0):
    each = batch / 64
    cores = setup.servers * setup.server_cores
    t0, t1, t2, t3, t4 = TERMS
    return (
        t0 + t1 * each / setup.worker_cores + t2 * setup.workers / cores
        + t3 * setup.workers / setup.servers + t4 * each / setup.servers
    )  # fmt: skip


def setups():
    return [
        ServerSetup(0.0, workers, servers, worker, server)
        for workers, servers, worker, server in [
            (2, 1, 1.0, 0.5), (4, 1, 1.0, 0.5), (4, 2, 1.0, 0.5), (4, 2, 2.0, 0.5),
            (4, 2, 2.0, 1.0), (8, 2, 2.0, 1.0),
        ]
    ]  # fmt: skip


def test_a_known_law_is_found_and_says_what_another_setup_brings():
    """Six setups, three percent of noise: each number changed alone is foretold to a tenth."""
    noise = np.random.default_rng(1)
    shown = [
        PsRow(one, 64.0, true_seconds(one) * (1 + 0.03 * noise.standard_normal()))
        for one in setups()
    ]
    model = ps_model.fit(shown)
    now = setups()[4]
    for change in ({"workers": 6}, {"servers": 3}, {"server_cores": 2.0}, {"worker_cores": 4.0}):
        other = dataclasses.replace(now, **change)
        truth = other.workers / true_seconds(other)
        assert model.steps_per_second(other) == pytest.approx(truth, rel=0.1)
        low, high = model.interval(other)
        assert low < truth < high
        assert model.reaches(other)
    assert not model.reaches(dataclasses.replace(now, servers=5))


def test_one_setup_tells_nothing_of_another():
    """However often it was measured."""
    same = [PsRow(BASE, 1.0, seconds) for seconds in (1.0, 1.1, 0.9)]
    assert ps_model.fit(same) is None
    assert ps_model.fit([]) is None


def window(start, steps, *, saving=0.0):
    return Throughput(start, start + 60, 1, 1, steps, 0, 0.1, 32.0, save_seconds=saving)


def test_windows_count_for_the_setup_they_were_made_in():
    """One in which it changed counts for none; one that was disturbed does not move a median."""
    first = ServerSetup(0.0, 2, 1, 1.0, 0.5)
    second = dataclasses.replace(first, since=130.0, server_cores=1.0)
    windows = [window(0, 60), window(60, 60), window(120, 90), window(180, 120), window(240, 20),
               window(300, 120, saving=1.0)]  # fmt: skip
    one, two = ps_model.median_rows((first, second), windows)
    assert (one.setup, one.batch, one.seconds) == (first, 32.0, 2.0)
    assert (two.setup, two.seconds) == (second, 2 * 0.5)
    assert ps_model.median_rows((), windows) == ()


def test_a_machine_that_changed_is_learnt_anew():
    """Two windows in a row of a setup at half its pace: what other setups had shown before counts
    no more. One such window is chance."""
    fewer = ServerSetup(0.0, 1, 1, 1.0, 1.0)
    more = dataclasses.replace(fewer, since=300.0, workers=2)
    calm = [window(60 * i, 60 if i < 5 else 120) for i in range(7)]
    later = [window(60 * i, 60) for i in (7, 8)]
    assert len(ps_model.median_rows((fewer, more), [*calm, later[0]])) == 2
    assert ps_model.last_change_at((fewer, more), [*calm, later[0]]) == 0.0
    (row,) = ps_model.median_rows((fewer, more), [*calm, *later])
    assert (row.setup.workers, row.seconds) == (2, pytest.approx(2.0))
    assert ps_model.last_change_at((fewer, more), [*calm, *later]) == 420.0
    assert ps_model.fit([row]) is None
    settled = [*calm, *(window(60 * i, 60) for i in range(7, 20))]
    assert len(ps_model.median_rows((fewer, more), settled)) == 1
