# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the law of parameter servers never says, whatever it was shown."""

from __future__ import annotations

import dataclasses
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from rover_kf.api.records import ServerSetup
from rover_kf.scaling import ps_model
from rover_kf.scaling.ps_model import PsRow

cores = st.sampled_from([0.1, 0.25, 0.5, 1.0, 2.0, 8.0])
setups = st.builds(ServerSetup, st.just(0.0), st.integers(1, 16), st.integers(1, 8), cores, cores)
rows = st.lists(
    st.builds(PsRow, setups, st.sampled_from([1.0, 32.0, 4096.0]), st.floats(1e-3, 1e3)),
    min_size=2,
    max_size=12,
)


@settings(max_examples=100, deadline=None)
@given(rows, setups)
def test_more_cores_never_slow_a_job(shown, setup):
    """Beside setups that were measured, which are believed as they are."""
    model = ps_model.fit(shown)
    if model is None:
        assert len({dataclasses.astuple(row.setup) for row in shown}) == 1
        return
    seen = {dataclasses.astuple(row.setup) for row in shown}
    for field in ("server_cores", "worker_cores"):
        more = dataclasses.replace(setup, **{field: 2 * getattr(setup, field)})
        if not {dataclasses.astuple(setup), dataclasses.astuple(more)} & seen:
            assert model.steps_per_second(more) >= model.steps_per_second(setup) * (1 - 1e-9)
    low, high = model.interval(setup)
    assert 0 < low < model.steps_per_second(setup) < high
    assert math.isfinite(high)
