# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The account of a job's seconds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rover_kf.metrics.goodput import BUCKETS, Account

times = st.floats(min_value=-10, max_value=1e6)
entries = st.lists(st.tuples(st.sampled_from(BUCKETS), times, st.floats(0, 100)), max_size=30)


@given(entries=entries, end=st.floats(min_value=0, max_value=1e6))
def test_sums_to_the_age(entries, end):
    """Whatever is entered, in whatever order: the buckets sum to the age, and none is negative."""
    account, latest = Account(0.0), 0.0
    for bucket, at, saved in entries:
        account = account.save(saved).enter(bucket, at)
        latest = max(latest, at)
    now = max(end, latest)
    found = account.totals(now)
    assert found.total == pytest.approx(now, abs=1e-3)
    assert min(found.waiting, found.productive, found.checkpoint, found.recovery) >= 0


def test_unknown_bucket():
    """A bucket that does not exist is refused with those that do."""
    with pytest.raises(ValueError, match="waiting"):
        Account(0.0).enter("lunch", 1.0)
