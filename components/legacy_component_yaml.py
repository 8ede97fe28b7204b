# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A component as the older component.yaml (version 1), which palettes such as Elyra's read.

Made from the component itself; its command is step_command.py in the components' image.
"""

from __future__ import annotations

from typing import Any

import yaml

from components.task_config import IMAGE

_TYPES = {"STRING": "String", "NUMBER_INTEGER": "Integer", "NUMBER_DOUBLE": "Float"}
_TYPES |= {"BOOLEAN": "Boolean", "LIST": "JsonArray", "STRUCT": "JsonObject"}
_FILLED_IN = "TASK_CONFIG"
"""A parameter of this type comes from the backend, never from a person."""


def to_legacy_yaml(component: Any) -> str:
    """The component's file for palettes.

    Args:
        component: as kfp's decorator made it.
    """
    (spec,) = component.pipeline_spec.components.values()
    inputs = [
        _input(name, item)
        for name, item in sorted(spec.input_definitions.parameters.items())
        if _type(item) != _FILLED_IN
    ]
    outputs = [
        {"name": name, "type": item.artifact_type.schema_title.removeprefix("system.")}
        for name, item in sorted(spec.output_definitions.artifacts.items())
    ]
    outputs += [
        {"name": name, "type": _TYPES[_type(item)]}
        for name, item in sorted(spec.output_definitions.parameters.items())
    ]
    name = component.python_func.__name__
    words: list[Any] = []
    for item in inputs:
        words += [f"--{item['name']}", {"inputValue": item["name"]}]
    for item in outputs:
        words += [f"--{item['name']}", {"outputPath": item["name"]}]
    container = {"image": IMAGE, "command": ["python3", "-m", "components.step_command", name]}
    document = {
        "name": name.replace("_", " ").capitalize(),
        "description": component.component_spec.description,
        "inputs": inputs,
        "outputs": outputs,
        "implementation": {"container": {**container, "args": words}},
    }
    return yaml.safe_dump(document, sort_keys=False, width=100)


def _input(name: str, item: Any) -> dict[str, Any]:
    kind = _TYPES[_type(item)]
    described = {"name": name, "type": kind, "description": item.description}
    if not item.is_optional:
        return described
    value = item.default_value
    default = getattr(value, value.WhichOneof("kind"))
    # Palettes want every default as a text.
    return {**described, "default": f"{default:g}" if kind == "Integer" else str(default),
            "optional": True}  # fmt: skip


def _type(item: Any) -> str:
    kinds = type(item).DESCRIPTOR.fields_by_name["parameter_type"].enum_type.values_by_number
    return str(kinds[item.parameter_type].name)
