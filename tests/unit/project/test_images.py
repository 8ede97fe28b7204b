# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Each image has all that its program may import, also what it imports only when it needs it."""

from __future__ import annotations

import ast
import importlib.metadata
import pathlib
import sys
from collections.abc import Iterator

import pytest
import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = pathlib.Path(__file__).parents[3]
LISTS = ROOT / "controller"
OURS = ("rover_kf", "controller", "components")
NAMES = {"jwt": "pyjwt"}
"""Packages that are installed under another name than they are imported by."""
PARTS = {"psycopg-binary"}
"""Of other packages: pyproject.toml does not name them."""


def _module(name: str) -> pathlib.Path | None:
    """The file of one of our modules; a name that is in a module has none."""
    path = ROOT.joinpath(*name.split("."))
    found = (path / "__init__.py", path.with_suffix(".py"))
    return next((file for file in found if file.exists()), None)


def _imported(tree: ast.AST) -> Iterator[str]:
    """Modules that code may import, and names that may be modules; not what types alone need."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            yield from _imported(node)


def _foreign(program: str) -> set[str]:
    """Packages of others that a program may import, with whatever module of ours."""
    looked, waiting, found = set(), [program], set()
    while waiting:
        name = waiting.pop()
        if name in looked:
            continue
        looked.add(name)
        top = name.partition(".")[0]
        if top not in OURS:
            found.add(top)
            continue
        waiting += [name.rpartition(".")[0]] if "." in name else []
        file = _module(name)
        if file is not None:
            waiting += _imported(ast.parse(file.read_text()))
    return found - set(sys.stdlib_module_names)


def _installed(listed: pathlib.Path) -> set[str]:
    """The packages of a list, and what these want for themselves."""
    pinned = set(_pinned(listed))
    wanted = (
        Requirement(line)
        for name in pinned - PARTS
        for line in importlib.metadata.requires(name) or ()
    )
    return pinned | {canonicalize_name(one.name) for one in wanted if not one.marker}


def _pinned(listed: pathlib.Path) -> dict[str, Requirement]:
    """The packages of a list and of those that it takes in."""
    found: dict[str, Requirement] = {}
    for line in listed.read_text().splitlines():
        if line.startswith("-r "):
            found |= _pinned(listed.parent / line.removeprefix("-r "))
        elif line and not line.startswith("#"):
            wanted = Requirement(line)
            found[canonicalize_name(wanted.name)] = wanted
    return found


@pytest.mark.parametrize(
    ("image", "program"),
    [("sidecar", "rover_kf.sidecar.__main__"), ("controller", "controller.__main__")],
)
def test_an_image_has_what_its_program_imports(image, program):
    """A package that an image lacks is missed nowhere where the tests run."""
    needed = {canonicalize_name(NAMES.get(name, name)) for name in _foreign(program)}
    print(f"{image}: {sorted(needed)}")
    assert "aiohttp" in needed
    assert not needed - _installed(LISTS / f"requirements-{image}.txt")


def test_pins_lie_in_the_ranges_of_the_package():
    """What the images have is what pyproject.toml allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    ranges = {canonicalize_name(Requirement(line).name): line for group in groups for line in group}
    lists = sorted(LISTS.glob("requirements-*.txt"))
    assert lists
    for listed in lists:
        for name, pinned in _pinned(listed).items():
            if name in PARTS:
                continue
            (only,) = pinned.specifier
            assert only.operator == "=="
            assert only.version in Requirement(ranges[name]).specifier, (listed.name, name)
