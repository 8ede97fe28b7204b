# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How long the soak lasts, and from which seed its faults come."""

from __future__ import annotations

import random

import pytest

PATIENCE = 2.0
"""The whole test may take so many times the wanted minutes, and ten minutes more."""
STARTS_SECONDS = 2400.0
"""The cluster's start, which may compile Kubernetes, and the stock job's first world."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak-minutes", type=float, default=60.0, help="of training; default 60")
    parser.addoption("--goodput-minutes", type=float, default=20.0, help="of each side; default 20")
    parser.addoption("--soak-seed", type=int, help="of the faults; by chance if not given")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seconds = 60 * (PATIENCE * config.getoption("--soak-minutes") + 10)
    for item in items:
        if "minutes" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(seconds))
        if "goodput_minutes" in getattr(item, "fixturenames", ()):
            both = 2 * 60 * config.getoption("--goodput-minutes")
            item.add_marker(pytest.mark.timeout(both + STARTS_SECONDS))


@pytest.fixture
def minutes(pytestconfig) -> float:
    """Of training that is wanted."""
    return pytestconfig.getoption("--soak-minutes")


@pytest.fixture
def goodput_minutes(pytestconfig) -> float:
    """Of training of each side, a fault each."""
    return pytestconfig.getoption("--goodput-minutes")


@pytest.fixture
def seed(pytestconfig) -> int:
    """Of the faults."""
    given = pytestconfig.getoption("--soak-seed")
    return random.SystemRandom().randrange(1_000_000) if given is None else given
