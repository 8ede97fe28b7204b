# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The soak tells growth without bound from noise."""

from __future__ import annotations

from soaking import growth
from soaking.growth import Files, Sample


def _samples(rss, *, process: int = 1, descriptors: float = 20) -> list[Sample]:
    return [
        Sample("sidecar", process, 5.0 * number, value, descriptors)
        for number, value in enumerate(rss)
    ]


def test_a_steady_process_is_no_failure():
    """Noise within the tolerance passes, whatever came first."""
    assert growth.grown(_samples([80 + number % 7 for number in range(720)])) == []


def test_a_jump_is_seen():
    """A second half above the share and the extra is told with both medians."""
    samples = _samples([80.0] * 100 + [110.0] * 100)
    assert growth.grown(samples)[0] == "rss_mib of sidecar: 80.0, then 110.0"


def test_descriptors_are_looked_at():
    """Memory may stand still while descriptors grow."""
    samples = _samples([80.0] * 50) + _samples([80.0] * 50, descriptors=60)
    assert growth.grown(samples) == ["descriptors of sidecar: 20.0, then 60.0"]


def test_a_leak_shows_through_restarts():
    """Each process starts small again, so the medians stand still: the rate within lives tells."""
    lives = 12
    leak = [
        Sample("sidecar", life, 300.0 * life + 5 * number, 60 + number / 6, 20)
        for life in range(lives)
        for number in range(60)  # five minutes, 2 MiB a minute
    ]
    (told,) = growth.grown(leak)
    assert told == "a sidecar grows by 120 MiB an hour"
    assert growth.mib_per_hour(leak[:100], "sidecar") is None


def test_files_have_bounds():
    """The worst moment counts, kind by kind."""
    well = Files(arena=4, memory=3, storage=5, state=20, logs=4)
    assert growth.piled_up([well], keep=3, pods_made=4) == []
    worse = Files(arena=6, memory=3, storage=9, state=20, logs=4)
    assert growth.piled_up([well, worse, well], keep=3, pods_made=4) == [
        "arena: 6, 5 are allowed",
        "storage: 9, 5 are allowed",
    ]
