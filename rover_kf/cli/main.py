# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The command's entry: verbs put together, errors turned into sentences and exit codes."""

from __future__ import annotations

import pathlib
import sys

import click

import rover_kf
from rover_kf import errors
from rover_kf.cli import (
    checkpoint,
    completion,
    doctor,
    exit_codes,
    history,
    job_verbs,
    patch,
    recommend,
    run,
    simulate,
    top,
    trace,
    train,
)
from rover_kf.cli.connection_options import ConnectionOptions
from rover_kf.cli.pause_resume import VERBS as STEERING
from rover_kf.client import settings


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(rover_kf.__version__, prog_name="rover-kf")
@click.option(
    "--on",
    type=click.Choice(settings.CLUSTERS),
    help="Where jobs are [default: $ROVER_KF_ON, else embedded].",
)
@click.option("--state", type=click.Path(path_type=pathlib.Path), help="Folder of embedded jobs.")
@click.option("--context", help="Context of the kubeconfig.")
@click.pass_context
def cli(
    ctx: click.Context, on: str | None, state: pathlib.Path | None, context: str | None
) -> None:
    """Elastic, fault-tolerant training for plain Kubeflow PyTorchJobs."""
    ctx.obj = ConnectionOptions(cluster=on, state=state, context=context)


BEFORE = (*run.VERBS, *train.VERBS, *patch.VERBS, *recommend.VERBS, *simulate.VERBS)
AROUND = (*top.VERBS, *trace.VERBS, *doctor.VERBS, *completion.VERBS)

for verb in (*BEFORE, *job_verbs.VERBS, *history.VERBS, *checkpoint.VERBS, *AROUND, *STEERING):
    cli.add_command(verb)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit.

    Args:
        arguments: without the program's name; the process's own by default.
    """
    try:
        code = cli.main(arguments, prog_name="rover-kf", standalone_mode=False)
    except errors.RoverError as refusal:
        click.echo(f"error: {refusal}", err=True)
        sys.exit(refusal.exit_code)
    except click.ClickException as refusal:
        refusal.show()
        sys.exit(refusal.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(exit_codes.INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)
