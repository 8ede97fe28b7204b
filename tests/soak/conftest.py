# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How long the soak lasts, and from which seed its faults come."""

from __future__ import annotations

import random

import pytest

PATIENCE = 2.0
"""The whole test may take so many times the wanted minutes, and ten minutes more."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak-minutes", type=float, default=60.0, help="of training; default 60")
    parser.addoption("--soak-seed", type=int, help="of the faults; by chance if not given")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seconds = 60 * (PATIENCE * config.getoption("--soak-minutes") + 10)
    for item in items:
        if "minutes" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(seconds))


@pytest.fixture
def minutes(pytestconfig) -> float:
    """Of training that is wanted."""
    return pytestconfig.getoption("--soak-minutes")


@pytest.fixture
def seed(pytestconfig) -> int:
    """Of the faults."""
    given = pytestconfig.getoption("--soak-seed")
    return random.SystemRandom().randrange(1_000_000) if given is None else given
