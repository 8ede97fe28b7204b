# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The verb patch. Nothing is created by it."""

from __future__ import annotations

import pathlib

import click

from rover_kf.cli.place import Place
from rover_kf.client import manifests
from rover_kf.injection import differences
from rover_kf.injection.inject import inject

FILE = click.argument("file", metavar="JOB.yaml", type=click.Path(path_type=pathlib.Path))


@click.command()
@FILE
@click.option("-o", "--output", type=click.Path(path_type=pathlib.Path), help="File to write.")
@click.option("--diff", is_flag=True, help="Show what would change instead.")
@click.pass_obj
def patch(place: Place, file: pathlib.Path, output: pathlib.Path | None, diff: bool) -> None:  # noqa: FBT001 - click passes flags so
    """Print the file with the job patched, ready for ``kubectl apply -f -``.

    Patching a patched file changes nothing.
    """
    source = manifests.load(file)
    done = inject(source.job, settings=place.read_settings().injection, source=source.name)
    for event in done.warnings:
        click.echo(f"warning: {event.message}", err=True)
    # Equal but for the order of keys is equal: a patched file comes out as it went in.
    job = source.job if done.manifest == source.job else done.manifest
    text = source.with_job(job).to_yaml()
    if diff:
        text = differences.diff(source.job, job, source=source.name)
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")


VERBS = (patch,)
