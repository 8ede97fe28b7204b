# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One option for all verbs that tell something: as a table for people, or as JSON or YAML."""

from __future__ import annotations

import json

import click
import yaml
from rich.console import Console, RenderableType
from rich.measure import Measurement
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


def print_parts(*parts: RenderableType) -> None:
    """Print for people, one below the other.

    In a pipe or a file lines are as long as they are, to be searched. On a terminal cells are
    wrapped, but no word is cut, for what is left of a step or a name is worth nothing: where a
    table is wider even so, the terminal breaks its lines.
    """
    console = Console(markup=False)
    console.size = (console.width if console.is_terminal else _WIDE, console.height)
    for part in parts:
        if isinstance(part, Table):
            _print_table(console, part)
        else:
            # Sentences go on to the end of their line, so that a file of them can be searched.
            console.print(part, soft_wrap=True)


def _print_table(console: Console, table: Table) -> None:
    wide = console.options.update_width(_WIDE)
    for column in table.columns:
        cells = (column.header, *column.cells)
        column.min_width = max(Measurement.get(console, wide, cell).minimum for cell in cells)
    size = console.size
    console.size = (max(size.width, Measurement.get(console, wide, table).minimum), size.height)
    console.print(table, crop=False)
    console.size = size


def print_value(value: object, form: str, *parts: RenderableType) -> None:
    """Print dataclasses, or plain data of them, in one of FORMATS; for people the parts."""
    if form == "json":
        click.echo(json.dumps(codec.encode(value), indent=2))
    elif form == "yaml":
        click.echo(yaml.safe_dump(codec.encode(value), sort_keys=False, width=100), nl=False)
    else:
        print_parts(*parts)
