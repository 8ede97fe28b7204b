# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""States are compared whole: a bare step is not the identity of a state."""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Iterator

import pytest

from rover_kf.api.states import RoundId, State

ROOT = pathlib.Path(__file__).parents[3] / "rover_kf"
PACKAGES = ("api", "checkpoint", "coordinator", "sidecar", "trainer")
ALLOWED = {
    "checkpoint/resharding/step_selection.py": "a filter before states are compared",
    "coordinator/telemetry.py": "how far training has come",
    "trainer/keras.py": "what the script counts",
    "trainer/step_counter.py": "what the script counts",
    "trainer/huggingface/trainer.py": "what the script counts",
}
"""Modules that compare steps, and why these are no identities."""


def _is_step(node: ast.expr) -> bool:
    """Whether an expression is the step of something."""
    return (
        isinstance(node, ast.Attribute) and re.fullmatch(r"step|_?\w*_step", node.attr) is not None
    )


def _comparisons(path: pathlib.Path) -> Iterator[int]:
    """Lines of a module that compare a step, or choose the greatest."""
    for node in ast.walk(ast.parse(path.read_text())):
        compared: list[ast.expr] = []
        if isinstance(node, ast.Compare) and not isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            compared = [node.left, *node.comparators]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            compared = node.args if node.func.id in {"max", "min"} else []
        if any(map(_is_step, compared)):
            yield node.lineno


def _found() -> dict[str, list[int]]:
    modules = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    lines = {path.relative_to(ROOT).as_posix(): [*_comparisons(path)] for path in modules}
    return {name: found for name, found in lines.items() if found}


def test_no_module_compares_bare_steps():
    """But for those whose reason is given here."""
    assert {name: lines for name, lines in _found().items() if name not in ALLOWED} == {}


def test_each_exception_is_still_one():
    """A module that compares no step any more is taken from the list."""
    assert set(ALLOWED) - set(_found()) == set()


def test_a_state_is_compared_with_states_alone():
    """A number of a step that gets into a comparison is an error, not another order."""
    state = State(RoundId(1, 1), 10)
    for other in (10, (10, 1)):
        with pytest.raises(TypeError):
            assert state < other
        assert state != other
    assert State(RoundId(1, 2), 9) > state
    assert State(RoundId(2, 1), 1) > State(RoundId(1, 9), 99)
    assert State(RoundId(1, 1), 10, 2) > state
