# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Generated pages say what their sources say now."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest

PAGES = (
    "api.md",
    "cli.md",
    "failures.md",
    "metrics.md",
    "policy.md",
    "rbac.md",
    "reference/events.md",
)
DOCS = pathlib.Path(__file__).parents[3] / "docs"


def _generated() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.documents()


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_fresh(name):
    """docs/generate.py gives exactly what is checked in; run it and commit if this fails."""
    assert _generated()[name] == (DOCS / name).read_text()
