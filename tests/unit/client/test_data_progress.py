# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How far data sets are read, as a terminal shows it."""

from __future__ import annotations

import io

from rich.console import Console

from rover_kf.api.data import DataStatus, PoisonedShard, SlotSpan, WorkerShare
from rover_kf.client.progress_text import (
    format_data,
    format_data_lines,
    progress_bars,
)

EPOCH = DataStatus(
    *("train", 1, 3, 5000, 1234, 64, 8, 120.4, 73.2),
    poison=(PoisonedShard(SlotSpan("part-7.parquet", 32, 40), 3, "DatasetReadError: row group 2"),),
    workers=(WorkerShare("1/p9", 900, 32), WorkerShare("0/p8", 300, 32)),
)
STREAM = DataStatus("clicks", 0, 1, 0, 0, 0, 0, 0.0)


def test_how_far_a_data_set_is_read():
    """A stream has no epochs, no end, and may have no slots yet; a loader does not know the last
    epoch."""
    assert format_data(EPOCH) == "train 25% of epoch 2/3 (120/s, 73 s left, 8 set aside)"
    assert format_data(STREAM) == "clicks (0/s)"
    alone = DataStatus("loader", 2, 0, 100, 50, 0, 0, 10.0, 5.0)
    assert format_data(alone) == "loader 50% of epoch 3 (10/s, 5 s left)"


def test_all_that_is_known_of_a_data_set():
    """A bar, who has how much, and what was set aside by its name."""
    assert list(format_data_lines(EPOCH)) == [
        f"[#####-------------------] {format_data(EPOCH)}, 1234 of 5000, 64 lent",
        "  used by rank 1 75%, rank 0 25%",
        "  set aside: part-7.parquet 32 to 40 after 3 tries: DatasetReadError: row group 2",
    ]
    (line,) = format_data_lines(STREAM)
    assert line.startswith("[------------------------] clicks")


def test_bars_are_drawn_on_a_terminal():
    """As long as what is read of it."""
    told = io.StringIO()
    console = Console(file=told, width=160, force_terminal=True, color_system=None)
    console.print(progress_bars((EPOCH, STREAM)))
    first, second = told.getvalue().splitlines()
    print(told.getvalue())
    assert "train 25%" in first
    assert "rank 1 75%" in first
    assert 5 <= first.count("━") <= 24
    assert "clicks" in second
