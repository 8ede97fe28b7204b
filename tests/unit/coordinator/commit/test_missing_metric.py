# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The metric that checkpoint.keep-best names, and those that the script gives."""

from __future__ import annotations

from rover_kf.checkpoint.storage.retention import KeepBest
from rover_kf.coordinator.commit.committer import MissingMetricCheck

BEST = KeepBest.parse("accuracy:max:2")


def test_another_name_is_told_once_before_the_first_is_removed():
    """With the names that the script gives."""
    seen = MissingMetricCheck(BEST, keep=2)
    told = [seen.warning(step, {"eval_accuracy": 0.5, "loss": 1.0}) for step in range(1, 6)]
    assert [bool(one) for one in told] == [False, False, True, False, False]
    assert "accuracy:max:2" in told[2]
    assert "step 3 has no 'accuracy' but ['eval_accuracy', 'loss']" in told[2]


def test_a_metric_that_comes_now_and_then_is_enough():
    """Between two evaluations there may be none, or others alone."""
    seen = MissingMetricCheck(BEST, keep=2)
    given = [{}, {}, {}, {"loss": 1.0}, {"loss": 1.0, "accuracy": 0.1}, *[{"loss": 1.0}] * 9]
    assert not any(seen.warning(step, metrics) for step, metrics in enumerate(given))
    assert not any(
        MissingMetricCheck(None, keep=1).warning(step, {"loss": 1.0}) for step in range(9)
    )
