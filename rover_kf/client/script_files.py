# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A script with the modules of its folder that it imports, for a job on a cluster.

Only imports in the text are found; modules with computed names have to be in the image.
"""

from __future__ import annotations

import ast
import inspect
import pathlib
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rover_kf import errors


def render_script(
    function: Callable[..., object], parameters: Mapping[str, Any] | None = None
) -> str:
    """Return the function's source, and a call of it.

    The function imports what it needs in its body. ``parameters`` are plain data, passed as one
    dictionary, as kubeflow's client does.

    Raises:
        InputError: its source is not known, it is no plain function, or parameters are no plain
            data.
    """
    name = getattr(function, "__name__", "")
    if not inspect.isfunction(function) or not name.isidentifier():
        raise errors.InputError(f"{function!r} cannot be sent; allowed: a function made by def")
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except OSError as cause:
        raise errors.InputError(
            f"the source of {name} is not known ({cause}); allowed: a function of a file or of a "
            "notebook's cell"
        ) from cause
    if function.__closure__:
        outside = ", ".join(function.__code__.co_freevars)
        raise errors.InputError(
            f"{name} uses {outside} of the function around it, which does not go along; allowed: "
            "pass what it needs as parameters"
        )
    given = "" if parameters is None else _literal(name, dict(parameters))
    return f'{source}\n\nif __name__ == "__main__":\n    {name}({given})\n'


def _literal(name: str, parameters: dict[str, Any]) -> str:
    text = repr(parameters)
    try:
        same = ast.literal_eval(text) == parameters
    except (ValueError, SyntaxError):
        same = False
    if not same:
        raise errors.InputError(
            f"parameters of {name} are {text}; allowed: numbers, texts, lists and dictionaries"
        )
    return text


MAX_BYTES = 1_000_000
"""What fits into a ConfigMap, with room for its names."""


def collect_files(script: pathlib.Path) -> dict[str, str]:
    """Texts by file name: the script first, then each module of its folder that is imported.

    Raises:
        InputError: one cannot be read, is a folder, or all are too large for a ConfigMap.
    """
    found = {script.name: _text(script)}
    left = [script.name]
    while left:
        for name in _imported(found[left.pop()]):
            path = script.parent / f"{name}.py"
            # A package comes before a module of the same name, as in Python.
            if (script.parent / name / "__init__.py").is_file():
                raise errors.InputError(
                    f"{script} imports {name}, a folder beside it, which no ConfigMap can hold; "
                    "put it into the image under another path and submit a manifest, or make it "
                    f"one file {name}.py"
                )
            if path.name not in found and path.is_file():
                found[path.name] = _text(path)
                left.append(path.name)
    size = sum(len(text.encode()) for text in found.values())
    if size > MAX_BYTES:
        beside = f" with {', '.join(list(found)[1:])}" if len(found) > 1 else ""
        raise errors.InputError(
            f"{script}{beside} has {size} bytes; allowed: at most {MAX_BYTES}, which a ConfigMap "
            "can hold; put it into the image and submit a manifest"
        )
    return found


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        raise errors.InputError(f"{path} cannot be read: {cause}") from cause


def _imported(text: str) -> Iterator[str]:
    """First names of what the text imports; a relative import is no script's."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return  # its own error is said where it runs
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
