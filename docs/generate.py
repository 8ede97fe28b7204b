# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``python docs/generate.py``: write cli.md, policy.md and rbac.md from their sources.

A test compares the files with what this gives, so that they cannot fall behind.
"""

from __future__ import annotations

import pathlib

import click
import yaml

from rover_kf.api import names
from rover_kf.cli.entry import cli
from rover_kf.injection.policy import RoverPolicy

HERE = pathlib.Path(__file__).parent
NOTE = "<!-- Made by docs/generate.py; edit the source instead. -->\n"


def command_line() -> str:
    """Every command with its help, as the terminal shows it."""
    parts = [f"{NOTE}# Command line\n\n{_block(cli, 'rover-kf')}"]
    stack = sorted(cli.commands.items())
    while stack:
        name, command = stack.pop(0)
        parts.append(f"## rover-kf {name}\n\n{_block(command, f'rover-kf {name}')}")
        if isinstance(command, click.Group):
            below = [(f"{name} {key}", value) for key, value in sorted(command.commands.items())]
            stack = below + stack
    return "\n".join(parts)


def _block(command: click.Command, path: str) -> str:
    context = click.Context(
        command,
        info_name=path,
        terminal_width=88,
        max_content_width=88,
        help_option_names=["-h", "--help"],
    )
    return f"```text\n{command.get_help(context)}\n```\n"


def rights() -> str:
    """What the controller may do, from the manifests."""
    lines = [
        f"{NOTE}# Rights of the controller\n",
        "| role | resources | names | verbs |",
        "|---|---|---|---|",
    ]
    text = (HERE.parent / "manifests" / "base" / "rbac" / "rbac.yaml").read_text()
    for document in yaml.safe_load_all(text):
        for rule in document.get("rules") or []:
            groups = [group or "core" for group in rule["apiGroups"]]
            cells = (
                document["kind"],
                ", ".join(f"{group}/{kind}" for group in groups for kind in rule["resources"]),
                ", ".join(rule.get("resourceNames", ["any"])),
                ", ".join(rule["verbs"]),
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def policy() -> str:
    """Every annotation that a job may carry, from the policy's own fields."""
    lines = [
        f"{NOTE}# Policy annotations\n",
        "A job's wishes; a wrong key or value is refused at admission with what is allowed.\n",
        "| annotation | allowed | default |",
        "|---|---|---|",
    ]
    for section, part in RoverPolicy.model_fields.items():
        for key, field in type(part.default).model_fields.items():
            default = "" if field.default is None else str(field.default)
            default = "" if default == "()" else default
            name = f"{names.PREFIX}{section}.{key.replace('_', '-')}"
            lines.append(f"| `{name}` | {field.description} | {default} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the files."""
    for name, text in documents().items():
        (HERE / name).write_text(text)


def documents() -> dict[str, str]:
    """Text by file name."""
    return {"cli.md": command_line(), "policy.md": policy(), "rbac.md": rights()}


if __name__ == "__main__":
    main()
