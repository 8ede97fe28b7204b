# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A clock, a cluster in memory and a real history for tests of the reconcilers."""

from __future__ import annotations

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from memory_cluster import Clock, MemoryCluster

from rover_kf.history.store import SqlHistory


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def cluster(clock):
    return MemoryCluster(clock)


@pytest.fixture
def history(tmp_path):
    with SqlHistory(f"sqlite:///{tmp_path}/history.db") as store:
        yield store
