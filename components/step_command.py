# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``python -m components.step_command launch_training_job --manifest …``: one component, by words.

The container's command of the components' files for palettes: parameters as texts, outputs as the
paths of files to write.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any, get_args

from kfp import dsl

from rover_kf import errors

OUTPUT = "Output"
"""What kfp calls a value that a component returns."""


def main(words: Sequence[str]) -> None:
    """Run one component.

    Args:
        words: its folder's name, then ``--name value`` for each input and each output.

    Raises:
        InputError: there is no such component, input or output, or a value is of another type.
    """
    function = _function(words[0] if words else "")
    given = _given(words[1:])
    parameters = inspect.signature(function).parameters
    if unknown := sorted(set(given) - set(parameters) - {OUTPUT}):
        raise errors.InputError(f"{unknown} is no input of {words[0]}: {', '.join(parameters)}")
    result = given.pop(OUTPUT, "")
    values = {name: _value(parameters[name], text) for name, text in given.items()}
    values |= {
        name: dsl.TaskConfig()
        for name, one in parameters.items()
        if one.annotation is dsl.TaskConfig
    }
    returned = function(**values)
    for value in values.values():
        if isinstance(value, dsl.Artifact) and not pathlib.Path(value.path).exists():
            pathlib.Path(value.path).write_text(json.dumps(value.metadata), encoding="utf-8")
    if result:
        _file(result).write_text(str(returned), encoding="utf-8")


def _function(name: str) -> Any:
    try:
        module = importlib.import_module(f"components.{name}.component")
    except ImportError as cause:
        raise errors.InputError(f"{name!r} is no component: docs/components.md") from cause
    return getattr(module, name).python_func


def _given(words: Sequence[str]) -> dict[str, str]:
    names, values = words[::2], words[1::2]
    if len(names) != len(values) or any(not name.startswith("--") for name in names):
        raise errors.InputError(f"{' '.join(words)!r} is not --name value --name value …")
    return {name[2:]: value for name, value in zip(names, values, strict=True)}


def _value(parameter: inspect.Parameter, text: str) -> Any:
    kind = parameter.annotation
    made = next((part for part in get_args(kind) if hasattr(part, "schema_title")), None)
    if made is not None:
        return made(name=parameter.name, uri=str(_file(text)))
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise errors.InputError(f"{parameter.name} is {text!r}; allowed: true or false")
        return text.lower() == "true"
    try:
        return kind(text)
    except ValueError as cause:
        raise errors.InputError(f"{parameter.name} is {text!r}, no {kind.__name__}") from cause


def _file(path: str) -> pathlib.Path:
    found = pathlib.Path(path)
    found.parent.mkdir(parents=True, exist_ok=True)
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
