# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One option for all verbs that tell something: as a table for people, or as JSON or YAML."""

from __future__ import annotations

import json

import click
import yaml
from rich.console import Console, RenderableType
from rich.table import Table

from rover_kf.api import codec

FORMATS = ("table", "json", "yaml")
FORMAT = click.option(
    "-o",
    "--output",
    type=click.Choice(FORMATS),
    default="table",
    show_default=True,
    help="For people or for programs.",
)


_WIDE = 10_000


def printer() -> Console:
    """The standard output; in a pipe or a file lines are as long as they are, to be searched."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDE)


def tell(value: object, form: str, *parts: RenderableType) -> None:
    """Print a value.

    Args:
        value: dataclasses, or plain data of them.
        form: of FORMATS.
        parts: the same for people, one below the other.
    """
    if form == "json":
        click.echo(json.dumps(codec.encode(value), indent=2))
    elif form == "yaml":
        click.echo(yaml.safe_dump(codec.encode(value), sort_keys=False, width=100), nl=False)
    else:
        console = printer()
        for part in parts:
            # Sentences go on to the end of their line, so that a file of them can be searched.
            console.print(part, soft_wrap=not isinstance(part, Table))
