# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The public face: what is exported, documented and importable without any package."""

import ast
import inspect
import pathlib
import subprocess
import sys

import pytest

import rover_kf
from rover_kf import errors

PACKAGE = pathlib.Path(rover_kf.__file__).parent
ROOT = PACKAGE.parent


def test_exported_names_are_sorted_and_resolve():
    """``__all__`` lists each public name once, in order, and each of them is there."""
    assert rover_kf.__all__ == sorted(set(rover_kf.__all__))
    for name in rover_kf.__all__:
        assert getattr(rover_kf, name).__name__ == name


def test_a_wrong_name_is_an_attribute_error():
    """The lazy lookup fails as any module's does."""
    with pytest.raises(AttributeError, match="no attribute 'Chekpointer'"):
        rover_kf.Chekpointer  # noqa: B018 - the access is what is tested


@pytest.mark.parametrize("name", rover_kf.__all__)
def test_every_public_name_is_documented(name):
    """Each public class says what it is, and so does each of its public methods."""
    thing = getattr(rover_kf, name)
    assert inspect.getdoc(thing)
    undocumented = [
        member
        for member, value in vars(thing).items()
        if not member.startswith("_") and inspect.isfunction(value) and not inspect.getdoc(value)
    ]
    assert undocumented == []


def test_the_error_tree_is_drawn_as_it_is():
    """Every error class stands in the drawing of errors.py, and none that does not exist."""
    words = set((errors.__doc__ or "").replace("│", " ").split())
    classes = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.RoverError)
    }
    assert classes <= words
    drawn = {
        word for word in words if word.isidentifier() and word[0].isupper() and word in vars(errors)
    }
    assert drawn == classes


def test_the_runtime_imports_with_nothing_installed():
    """A user's image has the standard library and torch; the runtime needs no more."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import rover_kf, rover_kf.api.codec, rover_kf.api.membership, rover_kf.api.names\n"
        "import rover_kf.launcher.__main__, rover_kf.checkpoint.arena.arena\n"
        "files = [getattr(m, '__file__', None) or '' for m in sys.modules.values()]\n"
        "print(sorted(f for f in files if 'site-packages' in f))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(ROOT)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == "[]"


def test_the_command_line_starts_without_the_solver():
    """scipy's solver takes half a second to load: who fits no law does not wait for it."""
    code = "import sys, rover_kf.cli, controller.__main__; print('scipy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=ROOT,
    )
    assert done.stdout.strip() == "False"


def python_files():
    """Every Python file of the project that git knows."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / line for line in listed.stdout.splitlines()]


def test_every_file_names_its_licence():
    """Two SPDX lines open each file."""
    bare = [
        str(path.relative_to(ROOT))
        for path in python_files()
        if path.exists() and "SPDX-License-Identifier: Apache-2.0" not in path.read_text()[:300]
    ]
    assert bare == []


def test_every_module_says_what_it_is():
    """A module opens with a docstring."""
    silent = [
        str(path.relative_to(ROOT))
        for path in python_files()
        if path.exists() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_wire_names_stand_in_one_place():
    """Our prefix of labels and annotations is spelled once in the package."""
    stray = [
        str(path.relative_to(ROOT))
        for path in PACKAGE.rglob("*.py")
        if path.name != "names.py"
        and any(
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.startswith("rover-kf.io/")
            for node in ast.walk(ast.parse(path.read_text()))
        )
    ]
    assert stray == []
