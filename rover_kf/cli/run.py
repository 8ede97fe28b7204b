# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``rover-kf run``: the whole path on this machine, with live progress."""

from __future__ import annotations

import pathlib

import click
from rich.console import Console

from rover_kf.cli import foreground_job, recommendation_text
from rover_kf.cli.connection_options import ConnectionOptions
from rover_kf.cli.patch import DRY_RUN, print_patch_diff
from rover_kf.client import RoverClient


@click.command()
@click.argument("file", metavar="JOB.yaml", type=click.Path(path_type=pathlib.Path))
@click.option("--inject/--no-inject", default=True, help="Patch the job before it runs.")
@click.option("--report", type=click.Path(path_type=pathlib.Path), help="Report to write, HTML.")
@DRY_RUN
@click.pass_obj
def run(
    connection: ConnectionOptions,
    file: pathlib.Path,
    inject: bool,  # noqa: FBT001 - click passes flags so
    report: pathlib.Path | None,
    dry_run: bool,  # noqa: FBT001 - the same
) -> int:
    """Run a PyTorchJob on this machine: recommend, patch, train, record.

    Ctrl-C drains the job and leaves nothing behind; checkpoints on its claims stay.
    """
    foreground_job.exit_on_sigterm()
    with connection.embedded() as rover:
        if dry_run:
            print_patch_diff(rover, file)
            return 0
        _recommend(rover, file, Console())
        return foreground_job.run_to_end(
            rover, lambda: rover.submit(file, inject=inject).key, report if inject else None
        )


def _recommend(rover: RoverClient, file: pathlib.Path, console: Console) -> None:
    found = rover.recommend(file)
    if console.is_terminal:
        console.print(recommendation_text.size_table(found))
    else:
        click.echo("\n".join(recommendation_text.format_lines(found)))


VERBS = (run,)
