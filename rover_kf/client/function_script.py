# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A function of a notebook as a script, in the way of kubeflow's TrainingClient."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from rover_kf import errors


def script_of(function: Callable[..., object], parameters: Mapping[str, Any] | None = None) -> str:
    """The function's source, and a call of it.

    Args:
        function: imports what it needs in its own body: nothing outside of it goes along.
        parameters: plain data; handed over as one dictionary, as kubeflow's client does.

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
