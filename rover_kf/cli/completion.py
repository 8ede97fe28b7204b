# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``rover-kf completion``: the script that lets a shell complete its verbs and options."""

from __future__ import annotations

import click
from click import shell_completion

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


VERBS = (completion,)
