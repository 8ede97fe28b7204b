# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The account of a job's seconds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rover_kf.metrics.goodput import BUCKETS, GoodputAccount

times = st.floats(min_value=-10, max_value=1e6)
entries = st.lists(
    st.tuples(st.sampled_from(BUCKETS), times, times, st.floats(0, 100)), max_size=30
)


@given(entries=entries, end=st.floats(min_value=0, max_value=1e6))
def test_sums_to_the_age(entries, end):
    """Whatever is entered, in whatever order: the buckets sum to the age, and none is negative."""
    account, latest = GoodputAccount.begin(0.0), 0.0
    for number, (bucket, began, ended, saved) in enumerate(entries):
        if number % 3:
            account = account.step(began, ended, saving=saved, redone=bool(number % 2))
        else:
            account = account.enter(bucket, began).reassign(bucket)
        latest = max(latest, began, ended if number % 3 else began)
        assert sum(account.spent.values()) == account.since - account.started
    now = max(end, latest)
    found = account.totals(now)
    assert round(found.total * 1e6) == round(now * 1e6)
    assert min(getattr(found, bucket) for bucket in BUCKETS) >= 0


def test_unknown_bucket():
    """A bucket that does not exist is refused with those that do."""
    with pytest.raises(ValueError, match="waiting"):
        GoodputAccount.begin(0.0).enter("lunch", 1.0)


def test_a_save_is_no_longer_than_its_step():
    """What a save took is taken from its own step, at most all of it."""
    account = GoodputAccount.begin(0.0).step(0.0, 2.0, saving=0.5, redone=False)
    account = account.step(2.0, 3.0, saving=7.0, redone=False)
    account = account.step(3.0, 4.0, saving=0.5, redone=True)
    found = account.totals(4.0)
    assert (found.productive, found.checkpoint, found.redone) == (1.5, 1.5, 1.0)
