# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""docs/protocol.md names whatever goes over the wire."""

from __future__ import annotations

import dataclasses
import importlib
import pathlib
import re

import pytest

from rover_kf.api import names

PAGE = (pathlib.Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
MODULES = (
    "membership",
    "checkpoints",
    "replication",
    "faults.hang_reports",
    "samples",
    "status",
    "coordinator_state",
    "faults.node_check_messages",
    "data",
)


@pytest.mark.parametrize("module", MODULES)
def test_every_message_is_named(module):
    """A message that is added is told of in the page."""
    found = importlib.import_module(f"rover_kf.api.{module}")
    messages = [
        name
        for name, value in vars(found).items()
        if dataclasses.is_dataclass(value) and value.__module__ == found.__name__
    ]
    assert messages
    assert [name for name in messages if not re.search(rf"\b{name}\b", PAGE)] == []


def test_every_path_and_header_is_named():
    """So is a path, a header, a status of our own."""
    told = {
        value
        for name, value in vars(names).items()
        if name.startswith(("PATH_", "STATUS_COPY")) or name.endswith("_HEADER")
    }
    assert len(told) > 25
    assert sorted(str(value) for value in told if str(value) not in PAGE) == []
