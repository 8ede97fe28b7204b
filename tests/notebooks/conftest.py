# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What notebooks need beside this machine. Two run in CI, all of them with ``make notebooks``."""

from __future__ import annotations

import pytest

from tests.support.servers.kafka_broker import kafka_broker


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--at-length", action="store_true", help="notebooks that take half a minute")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    long = [item for item in items if item.module.__name__.endswith("test_notebooks")]
    long = [item for item in long if item.get_closest_marker("at_length")]
    if not config.getoption("--at-length"):
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


@pytest.fixture
def kafka(tmp_path):
    """A Kafka broker that serves."""
    with kafka_broker(tmp_path / "kafka") as broker:
        yield broker
