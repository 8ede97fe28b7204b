# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Measured tables, and how far the model is off on one whose law is known."""

from __future__ import annotations

import pytest

from benchmarks.scaling_bench import comparison, extrapolation
from rover_kf.simulation import traces
from rover_kf.simulation.step_time_tables import NoTables, StepTable, StepTimeRow
from tests.support.simulated import step_tables


def test_measured_places_come_back_and_others_lie_between():
    """A placement counts from any node on; batches between two measured ones lie on their line."""
    table = step_tables.table()
    for placement in ((1,), (3,), (4, 4), (1, 2, 4), (4, 1, 2)):
        found, sync = table.times(placement, 16)
        assert found == pytest.approx(step_tables.step_seconds(len(placement), sum(placement), 16))
        assert 0 <= sync < found
    middle, _ = table.times((4,), 24)
    assert middle == pytest.approx(step_tables.step_seconds(1, 4, 24))
    beyond, _ = table.times((4,), 128)
    assert beyond == pytest.approx(step_tables.step_seconds(1, 4, 128))
    least, _ = table.times((4,), 1)
    assert least == table.times((4,), 8)[0]


def test_a_size_that_was_not_measured_is_taken_from_its_neighbours():
    """Rows that say only nodes and replicas serve those; what lies between is interpolated."""
    measured = [
        StepTimeRow(hosts, ranks, batch, step_tables.step_seconds(hosts, ranks, batch))
        for hosts, ranks in ((1, 1), (1, 4), (2, 2), (2, 8), (4, 16))
        for batch in (8.0, 64.0)
    ]
    table = StepTable("sparse", measured)
    assert table.times((4, 4), 8)[0] == pytest.approx(step_tables.step_seconds(2, 8, 8))
    assert table.times((3, 3), 32)[0] == pytest.approx(step_tables.step_seconds(2, 6, 32), rel=0.05)
    alone = StepTable("alone", measured[:1])
    assert alone.times((4, 4), 99) == alone.times((1,), 8)


def test_other_hardware_has_other_times_for_each_part():
    """Half the time to compute, three times for the exchange; a step that was all exchange too."""
    rows = [
        StepTimeRow(1, 1, 8, 2.0),
        StepTimeRow(1, 2, 8, 3.0, 1.0, (2,)),
        StepTimeRow(2, 4, 8, 1.0, 1.5),
    ]
    found = comparison.on_other_hardware(StepTable("law", rows), 0.5, 3.0).rows
    assert [(row.seconds, row.sync) for row in found] == [(1.0, 0.0), (4.0, 3.0), (4.5, 4.5)]
    assert found[1].placement == (2,)


def test_sizes_follow_from_the_rows():
    """Up to a node any number, then whole nodes, where the share of the batch was measured."""
    table = step_tables.table()
    assert (table.per_host, table.most_ranks, table.batches) == (4, 16, (8, 64))
    assert table.sizes_for(64) == (1, 2, 3, 4, 8)
    assert table.sizes_for(256) == (4, 8, 12, 16)
    assert comparison.global_batches(table, 3) == (32, 91, 256)


def test_folders_of_any_models_are_read(tmp_path):
    """Names, depth and hardware are the folder's to say; equal names are told apart by folder."""
    step_tables.write(tmp_path / "one", "net", epochs={64: [10, 20], 128: [10, 20]})
    step_tables.write(tmp_path / "two", "net", speed=3.0)
    step_tables.write_workload(tmp_path, "workload-1", [("a", 5, "one/net", 2, 64)])
    found = traces.read(tmp_path)
    assert list(found.tables) == ["one/net", "two/net"]
    assert list(found.work) == ["one/net"]
    assert found.workloads["workload-1"][0].model == "one/net"
    assert found.work["one/net"].steps(64) == pytest.approx(20)
    with pytest.raises(NoTables, match=r"placements\.csv"):
        traces.read(tmp_path / "workloads")


def test_model_foretells_a_law_of_its_own_form():
    """Fourteen windows of up to four ranks foretell sixteen of a ring law within five percent."""
    errors = extrapolation.step_time_errors(step_tables.table(), range(5))
    print(errors)
    assert set(errors) == {1, 2, 4}
    assert errors[4] < 0.05
