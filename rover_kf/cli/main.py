# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The command's entry: verbs put together, errors turned into sentences and exit codes."""

from __future__ import annotations

import pathlib
import sys

import click
from click import shell_completion

import rover_kf
from rover_kf import errors
from rover_kf.cli import (
    checkpoint,
    doctor,
    exit_codes,
    history,
    job_verbs,
    patch,
    recommend,
    run,
    simulate,
    top,
)
from rover_kf.cli.options import PATH, ConnectionOptions
from rover_kf.client import settings

SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_ROVER_KF_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    bash:  echo 'source <(rover-kf completion bash)' >> ~/.bashrc
    zsh:   echo 'source <(rover-kf completion zsh)' >> ~/.zshrc
    fish:  rover-kf completion fish > ~/.config/fish/completions/rover-kf.fish
    """  # noqa: D301 - click's mark for lines that stay as they are
    made = shell_completion.get_completion_class(shell)
    if made is None:  # click has all three
        raise click.UsageError(f"no completion for {shell}")
    click.echo(made(ctx.find_root().command, {}, "rover-kf", _VARIABLE).source())


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(rover_kf.__version__, prog_name="rover-kf")
@click.option(
    "--on",
    type=click.Choice(settings.CLUSTERS),
    help="Where jobs are [default: $ROVER_KF_ON, else embedded].",
)
@click.option("--state", type=PATH, help="Folder of embedded jobs.")
@click.option("--context", help="Context of the kubeconfig.")
@click.pass_context
def cli(
    ctx: click.Context, on: str | None, state: pathlib.Path | None, context: str | None
) -> None:
    """Elastic, fault-tolerant training for plain Kubeflow PyTorchJobs."""
    ctx.obj = ConnectionOptions(cluster=on, state=state, context=context)


for verb in (
    *(run.run, run.train, patch.patch, recommend.recommend, simulate.simulate, *job_verbs.VERBS),
    *(history.history, checkpoint.checkpoint, top.top, doctor.doctor, completion),
):
    cli.add_command(verb)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line, by default the process's own, and exit."""
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
